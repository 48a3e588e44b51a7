"""What the embedded server promises, on real processes that are really killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from headwater.errors import EmbeddedServerFailed, InvalidInput
from headwater.store import directory as directories
from headwater.store import embedded, launch, supervisor
from headwater.store.embedded import EmbeddedServer
from tests.support.servers import until

pytestmark = pytest.mark.fault
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
SET_ONE = b"*3\r\n$3\r\nSET\r\n$3\r\none\r\n$1\r\n1\r\n"


@pytest.fixture
def directory() -> Iterator[Path]:
    parent = Path(tempfile.mkdtemp(prefix="hw-test-"))
    path = parent / "data"
    yield path
    embedded.stop(path, now=True)
    shutil.rmtree(parent)


def client(server: EmbeddedServer, timeout: float | None = None) -> redis.Redis:
    """Return a client that reports a broken connection at once and repeats nothing."""
    return redis.Redis(
        unix_socket_path=server.socket_path, retry=Retry(NoBackoff(), 0), socket_timeout=timeout
    )


def pid_of(directory: Path) -> int:
    pid = embedded.status(directory).pid
    assert pid is not None
    return pid


def is_gone(directory: Path) -> bool:
    return supervisor.is_free(directory / supervisor.SERVER_LOCK)


def kill_server(directory: Path) -> None:
    os.kill(pid_of(directory), signal.SIGKILL)
    until(lambda: not embedded.status(directory).running)


def supervisors(directory: Path) -> list[int]:
    """Return the process ids of the directory's living supervisors."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
            continue
        if supervisor.__file__.encode() in words and os.fsencode(directory) in words:
            found.append(int(entry.name))
    return found


def kill_supervisor(directory: Path) -> None:
    (pid,) = supervisors(directory)
    os.kill(pid, signal.SIGKILL)
    until(lambda: supervisor.is_free(directory / supervisor.SUPERVISOR_LOCK))


class User:
    """Another process that opens the directory, prints its server's pid, and runs the code."""

    def __init__(self, directory: Path, code: str = "sys.stdin.read()") -> None:
        program = (
            "import os, redis, sys\n"
            "from headwater.store import embedded\n"
            "from redis.backoff import NoBackoff\n"
            "from redis.retry import Retry\n"
            "def client(server):\n"
            "    path = server.socket_path\n"
            "    return redis.Redis(unix_socket_path=path, retry=Retry(NoBackoff(), 0))\n"
            "server = embedded.EmbeddedServer.open(sys.argv[1])\n"
            "print(embedded.status(sys.argv[1]).pid, flush=True)\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", program + code, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def server_pid(self) -> int:
        return int(self.line())

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def rest(self) -> str:
        """Let it end, and return what it printed meanwhile."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        printed = self.process.stdout.read()
        self.process.wait()
        return printed

    def kill(self) -> None:
        self.process.kill()
        self.rest()


def newest_file(directory: Path) -> Path:
    (path,) = (directory / supervisor.AOF_DIRECTORY).glob("*.incr.aof")
    return path


def lay_out(directory: Path, commands: bytes) -> Path:
    """Make a data directory whose append-only file holds exactly these bytes."""
    aof = directory / supervisor.AOF_DIRECTORY
    aof.mkdir(parents=True)
    (aof / supervisor.AOF_MANIFEST).write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")
    path = aof / "appendonly.aof.1.incr.aof"
    path.write_bytes(commands)
    directory.chmod(0o700)
    return path


# ── Starting and sharing ─────────────────────────────────────────────────────────────────────


def test_a_server_starts_from_nothing_in_under_a_second(directory: Path) -> None:
    times = []
    for attempt in range(3):
        fresh = directory.with_name(f"fresh-{attempt}")
        begin = time.perf_counter()
        server = EmbeddedServer.open(fresh)
        times.append(time.perf_counter() - begin)
        server.close()
        embedded.stop(fresh)
    assert min(times) < 1.0


def test_open_creates_a_private_directory_with_a_durable_server_in_it(directory: Path) -> None:
    with EmbeddedServer.open(directory / "a" / "b") as server:
        assert server.directory == directory / "a" / "b"
        settings = client(server).config_get(
            "port", "appendonly", "appendfsync", "aof-load-truncated", "maxmemory-policy", "save"
        )
        modes = {
            entry.name: entry.stat().st_mode & 0o777
            for entry in [server.directory, *server.directory.rglob("*")]
        }
        directories = {"b", supervisor.AOF_DIRECTORY}
        assert {name for name, mode in modes.items() if mode & 0o100} == {
            *directories,
            supervisor.SOCKET,
        }
        assert not any(mode & 0o077 for mode in modes.values()), modes
    assert settings == {
        "port": "0",
        "appendonly": "yes",
        "appendfsync": "always",
        "aof-load-truncated": "no",
        "maxmemory-policy": "noeviction",
        "save": "",
    }
    embedded.stop(server.directory)


@linux_only
def test_the_server_listens_on_nothing_but_its_socket(directory: Path) -> None:
    with EmbeddedServer.open(directory):
        process = Path("/proc", str(pid_of(directory)))
        sockets = {
            target.removeprefix("socket:[").removesuffix("]")
            for entry in (process / "fd").iterdir()
            if (target := str(entry.readlink())).startswith("socket:[")
        }
        internet = {
            row.split()[9]
            for table in ("tcp", "tcp6", "udp", "udp6")
            if (process / "net" / table).exists()
            for row in (process / "net" / table).read_text().splitlines()[1:]
        }
        assert sockets
        assert not sockets & internet


def test_a_second_process_attaches_to_the_running_server(directory: Path) -> None:
    with EmbeddedServer.open(directory) as server:
        client(server).set("one", 1)
        user = User(directory)
        assert user.server_pid() == pid_of(directory)
        user.rest()
        assert client(server).get("one") == b"1"


def test_ten_processes_that_open_at_once_share_one_server(directory: Path) -> None:
    users = [User(directory) for _ in range(10)]
    pids = {user.server_pid() for user in users}
    for user in users:
        user.rest()
    assert len(pids) == 1


@pytest.mark.parametrize("kind", ["long", "not ASCII", "with spaces and ${signs}"])
def test_the_directory_may_have_any_name_and_length(directory: Path, kind: str) -> None:
    name = {"long": "x" * 200, "not ASCII": "Übung-流"}.get(kind, kind)
    with EmbeddedServer.open(directory / name) as server:
        assert len(os.fsencode(server.socket_path)) < 104
        assert client(server).set("one", 1)
        user = User(directory / name)
        assert user.server_pid() == pid_of(directory / name)
        user.rest()
    embedded.stop(directory / name)
    link = Path(server.socket_path).parent
    if kind == "long":
        # A link that leads elsewhere, or is gone, is made anew.
        for elsewhere in (True, False):
            link.unlink()
            if elsewhere:
                link.symlink_to(directory)
            with EmbeddedServer.open(directory / name) as server:
                assert client(server).get("one") == b"1"
                link.unlink()
                server.ensure_running()
                assert client(server).get("one") == b"1"
            embedded.stop(directory / name)
        link.unlink()


def test_an_open_waits_until_a_large_file_is_loaded(directory: Path) -> None:
    commands = 1_000_000
    lay_out(directory, b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n" * commands)
    users = [User(directory) for _ in range(2)]
    with EmbeddedServer.open(directory) as server:
        assert client(server).get("n") == str(commands).encode()
    assert len({user.server_pid() for user in users}) == 1
    for user in users:
        user.rest()


@pytest.mark.skipif(not shutil.which("redis-server"), reason="there is no redis-server on the PATH")
def test_the_server_program_can_be_named(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(launch.SERVER_VARIABLE, "redis-server")
    with EmbeddedServer.open(directory) as server:
        assert client(server).info("server").get("valkey_version") is None
        assert embedded.status(directory).version


# ── Ending and staying ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", [User.rest, User.kill], ids=["exit", "kill"])
def test_the_server_ends_with_its_last_user(directory: Path, end: Callable[[User], None]) -> None:
    with EmbeddedServer.open(directory) as server:
        user = User(directory)
        pid = user.server_pid()
        client(server).set("one", 1)
    assert pid_of(directory) == pid
    end(user)
    until(lambda: is_gone(directory))
    assert not (directory / supervisor.SOCKET).exists()
    assert not (directory / supervisor.PID_FILE).exists()
    with EmbeddedServer.open(directory) as server:
        assert client(server).get("one") == b"1"


def test_a_server_holds_no_pipe_of_the_program_that_started_it(directory: Path) -> None:
    program = f"from headwater.store import embedded; embedded.start({str(directory)!r})"
    subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=True)
    assert embedded.status(directory).running


def test_holds_of_one_process_are_independent(directory: Path) -> None:
    first = EmbeddedServer.open(directory)
    second = EmbeddedServer.open(directory)
    first.close()
    first.close()
    second.ensure_running()
    assert client(second).ping()
    with pytest.raises(EmbeddedServerFailed, match="was closed"):
        first.ensure_running()
    second.close()
    until(lambda: is_gone(directory))


def test_a_forked_child_keeps_the_server_when_its_parent_is_gone(directory: Path) -> None:
    user = User(
        directory,
        "if os.fork():\n"
        "    server.close()\n"
        "    os._exit(0)\n"
        "print('forked', flush=True)\n"
        "sys.stdin.read()\n"
        "server.ensure_running()\n"
        "print(embedded.status(sys.argv[1]).pid, flush=True)\n",
    )
    pid = user.server_pid()
    assert user.line() == "forked\n"
    assert user.process.wait() == 0
    assert user.rest() == f"{pid}\n"
    until(lambda: is_gone(directory))


def test_a_started_server_stays_until_it_is_stopped(directory: Path) -> None:
    begun = embedded.start(directory)
    assert begun.running
    assert begun.stays
    until(lambda: supervisor.is_free(directory / supervisor.USERS_LOCK))
    # The supervisor goes on watching the directory.
    assert not supervisor.is_free(directory / supervisor.SUPERVISOR_LOCK)
    with EmbeddedServer.open(directory):
        assert pid_of(directory) == begun.pid
    assert embedded.start(directory).pid == begun.pid
    until(lambda: supervisor.is_free(directory / supervisor.USERS_LOCK))
    assert embedded.status(directory) == begun
    ended = embedded.stop(directory)
    assert (ended.running, ended.stays, ended.pid) == (False, False, None)
    assert not embedded.stop(directory).running


def test_a_stopped_server_serves_the_users_it_still_has(directory: Path) -> None:
    begun = embedded.start(directory)
    with EmbeddedServer.open(directory) as server:
        stopped = embedded.stop(directory)
        assert (stopped.running, stopped.stays, stopped.pid) == (True, False, begun.pid)
        assert client(server).ping()
    until(lambda: is_gone(directory))


def test_stop_now_ends_the_server_and_a_living_user_gets_it_back(directory: Path) -> None:
    begun = embedded.start(directory)
    with EmbeddedServer.open(directory) as server:
        client(server).set("one", 1)
        assert not embedded.stop(directory, now=True).running
        with pytest.raises(redis.ConnectionError):
            client(server).ping()
        server.ensure_running()
        assert pid_of(directory) != begun.pid
        assert client(server).get("one") == b"1"


def test_ctrl_c_in_a_users_terminal_does_not_reach_the_server(directory: Path) -> None:
    user = User(directory)
    pid = user.server_pid()
    with EmbeddedServer.open(directory) as server:
        os.killpg(user.process.pid, signal.SIGINT)
        user.rest()
        assert user.process.returncode != 0
        assert client(server).ping()
        assert pid_of(directory) == pid


def test_status_neither_starts_nor_creates_nor_holds(directory: Path) -> None:
    nothing = embedded.status(directory)
    assert not nothing.running
    assert (nothing.pid, nothing.version, nothing.stays) == (None, None, False)
    assert not embedded.stop(directory).running
    assert not directory.exists()
    with EmbeddedServer.open(directory) as server:
        running = embedded.status(directory)
        assert running.running
        assert not running.loading
        assert running.directory == directory
        assert running.socket == server.socket_path
        assert running.version == client(server).info("server")["valkey_version"]
    until(lambda: is_gone(directory))


def test_a_server_whose_directory_is_deleted_still_ends_with_its_user(directory: Path) -> None:
    server = EmbeddedServer.open(directory)
    pid = pid_of(directory)
    lock = supervisor.lock_file(directory / supervisor.SERVER_LOCK)
    shutil.rmtree(directory)
    with pytest.raises(EmbeddedServerFailed, match="removed, moved or replaced"):
        server.ensure_running()
    # A successor in the same place is another store, and the old one's end does not harm it.
    with EmbeddedServer.open(directory) as successor:
        assert pid_of(directory) != pid
        server.close()
        until(lambda: supervisor.try_lock(lock, 1))
        assert client(successor).ping()
    lock.close()


@pytest.mark.slow
def test_a_server_stuck_in_an_endless_script_is_ended_all_the_same(directory: Path) -> None:
    with EmbeddedServer.open(directory) as server:
        client(server).set("one", 1)
        with pytest.raises(redis.TimeoutError):
            client(server, timeout=0.2).eval("while true do end", 0)
    until(lambda: is_gone(directory), seconds=30)
    with EmbeddedServer.open(directory) as server:
        assert client(server).get("one") == b"1"


# ── Crashes ──────────────────────────────────────────────────────────────────────────────────


def test_kill_of_the_server_loses_nothing_that_was_acknowledged(directory: Path) -> None:
    writer = (
        "link = client(server)\n"
        "n = 0\n"
        "while True:\n"
        "    try:\n"
        "        n = link.incr('n')\n"
        "        link.set(f'key-{n}', n)\n"
        "        print(n, flush=True)\n"
        "    except redis.ConnectionError:\n"
        "        break\n"
    )
    with EmbeddedServer.open(directory) as server:
        acknowledged = 0
        for _ in range(3):
            user = User(directory, writer)
            pid = user.server_pid()
            for _ in range(50):
                acknowledged = int(user.line())
            os.kill(pid, signal.SIGKILL)
            printed = user.rest().split()
            acknowledged = int(printed[-1]) if printed else acknowledged
            server.ensure_running()
            assert pid_of(directory) != pid
            # One increment may have been done and not answered.
            assert int(client(server).get("n") or 0) in (acknowledged, acknowledged + 1)
            values = client(server).mget([f"key-{n}" for n in range(1, acknowledged + 1)])
            kept = {n for n, value in enumerate(values, 1) if value == str(n).encode()}
            assert acknowledged in kept
            assert len(kept) >= acknowledged - 3  # each round may leave one unwritten key behind


def test_many_threads_and_processes_restart_a_killed_server_once(directory: Path) -> None:
    with EmbeddedServer.open(directory) as server:
        again = (
            "print('ready', flush=True)\n"
            "sys.stdin.readline()\n"
            "server.ensure_running()\n"
            "print(embedded.status(sys.argv[1]).pid, flush=True)\n"
            "sys.stdin.read()\n"
        )
        users = [User(directory, again) for _ in range(4)]
        before = {user.server_pid() for user in users}
        assert [user.line() for user in users] == ["ready\n"] * 4
        kill_server(directory)
        for user in users:
            assert user.process.stdin is not None
            user.process.stdin.write("\n")
            user.process.stdin.flush()
        threads = [threading.Thread(target=server.ensure_running) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        after = {user.server_pid() for user in users} | {pid_of(directory)}
        assert len(after) == 1
        assert not after & before
        for user in users:
            user.rest()
    until(lambda: is_gone(directory))


@linux_only
@pytest.mark.parametrize("by", ["open", "ensure_running", "close"])
def test_a_server_whose_supervisor_was_killed_is_adopted(directory: Path, by: str) -> None:
    server = EmbeddedServer.open(directory)
    pid = pid_of(directory)
    kill_supervisor(directory)
    if by == "open":
        EmbeddedServer.open(directory).close()
    elif by == "ensure_running":
        server.ensure_running()
    if by != "close":
        assert pid_of(directory) == pid
        assert len(supervisors(directory)) == 1
        # The adopted server is restarted like any other.
        kill_server(directory)
        server.ensure_running()
        assert len(supervisors(directory)) == 1
        kill_supervisor(directory)
    server.close()
    until(lambda: is_gone(directory))
    until(lambda: not supervisors(directory))


@linux_only
def test_server_and_supervisor_killed_together_come_back_together(directory: Path) -> None:
    with EmbeddedServer.open(directory) as server:
        client(server).set("one", 1)
        pid = pid_of(directory)
        for victim in (*supervisors(directory), pid):
            os.kill(victim, signal.SIGKILL)
        server.ensure_running()
        assert client(server).get("one") == b"1"
        assert pid_of(directory) != pid
    until(lambda: is_gone(directory))


@linux_only
def test_whatever_is_killed_at_whatever_moment_there_is_one_server(directory: Path) -> None:
    """Users come, go and are killed while supervisor and server are killed under them."""
    steady = EmbeddedServer.open(directory)
    code = (
        "for _ in range(40):\n"
        "    with embedded.EmbeddedServer.open(sys.argv[1]) as held:\n"
        "        try:\n"
        "            client(held).incr('n')\n"
        "            print('counted', flush=True)\n"
        "        except redis.ConnectionError:\n"
        "            held.ensure_running()\n"
    )
    users = [User(directory, code) for _ in range(3)]
    for user in users:
        user.server_pid()
    for round_ in range(6):
        for victim in supervisors(directory) if round_ % 2 else []:
            os.kill(victim, signal.SIGKILL)
        if round_ % 3:
            pid = embedded.status(directory).pid
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        steady.ensure_running()
    users[0].process.kill()
    counted = sum(user.rest().count("counted") for user in users)
    assert [user.process.returncode for user in users[1:]] == [0, 0]
    steady.ensure_running()
    total = int(client(steady).get("n") or 0)
    # A killed server may have counted without an answer; what was answered is all there.
    assert counted <= total <= counted + 3 * 6
    assert len(supervisors(directory)) == 1
    steady.close()
    until(lambda: is_gone(directory))


def test_users_who_come_while_the_server_ends_wait_and_get_a_new_one(directory: Path) -> None:
    code = (
        "server.close()\n"
        "for _ in range(12):\n"
        "    with embedded.EmbeddedServer.open(sys.argv[1]) as server:\n"
        "        client(server).incr('n')\n"
    )
    users = [User(directory, code) for _ in range(4)]
    for user in users:
        user.rest()
        assert user.process.returncode == 0
    with EmbeddedServer.open(directory) as server:
        assert client(server).get("n") == b"48"


def test_what_a_killed_server_left_behind_is_no_obstacle(directory: Path) -> None:
    with EmbeddedServer.open(directory) as server:
        client(server).set("one", 1)
        kill_server(directory)
        assert (directory / supervisor.SOCKET).exists()
        # The process id in the file now belongs to somebody else, who must not be harmed.
        (directory / supervisor.PID_FILE).write_text(f"{os.getpid()}\n")
    until(lambda: is_gone(directory))
    with EmbeddedServer.open(directory) as server:
        assert client(server).get("one") == b"1"
        assert (directory / supervisor.PID_FILE).read_text() == f"{pid_of(directory)}\n"


def test_a_kill_in_the_middle_of_a_rewrite_loses_nothing(directory: Path) -> None:
    with EmbeddedServer.open(directory) as server:
        link = client(server)
        link.mset({f"key-{n}": os.urandom(2000) for n in range(20_000)})
        link.config_set("rdb-key-save-delay", 100)  # two seconds of rewriting
        link.bgrewriteaof()
        until(lambda: list(directory.glob("temp-*.aof")))
        link.set("one", 1)
        link.close()
        kill_server(directory)
        server.ensure_running()
        assert client(server).get("one") == b"1"
        assert client(server).dbsize() == 20_001
        assert not list(directory.glob("temp-*.aof"))


# ── What is on disk ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "zeros", [0, 5000, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 200_000))]
)
@pytest.mark.parametrize("transaction", [False, True])
def test_a_half_written_tail_is_cut(directory: Path, transaction: bool, zeros: int) -> None:
    with EmbeddedServer.open(directory) as server:
        client(server).set("one", 1)
        file = newest_file(directory)
        whole = file.stat().st_size
        with client(server).pipeline(transaction=transaction) as both:
            both.set("two", b"\0" * 100)
            both.set("three", 3)
            both.execute()
        # Take the last command's end away, as if the machine had failed while it was written.
        size = file.stat().st_size
    until(lambda: is_gone(directory))
    for cut in (1, 8, 20, size - whole - 1):
        copy = directory.with_name(f"cut-{cut}")
        shutil.copytree(directory, copy)
        os.truncate(newest_file(copy), size - cut)
        with newest_file(copy).open("ab") as tail:
            tail.write(b"\0" * zeros)
        with EmbeddedServer.open(copy) as server:
            assert client(server).get("one") == b"1"
            assert client(server).get("three") is None
            if transaction:
                assert client(server).get("two") is None
            client(server).set("four", 4)
        (aside,) = copy.glob("cut-*.aof")
        assert f"they are kept in {aside.name}" in (copy / supervisor.LOG).read_text()
        embedded.stop(copy)
        with EmbeddedServer.open(copy) as server:
            assert client(server).mget("one", "three", "four") == [b"1", None, b"4"]
        embedded.stop(copy)


@pytest.mark.parametrize("damage", [b"garbage!", b"\0" * 8], ids=["garbage", "zeros"])
def test_damage_before_the_tail_is_refused_and_left_as_it_is(
    directory: Path, damage: bytes
) -> None:
    stored = SET_ONE + damage + SET_ONE
    file = lay_out(directory, stored)
    with pytest.raises(EmbeddedServerFailed) as refused:
        EmbeddedServer.open(directory)
    assert "Bad file format" in str(refused.value)
    assert f"is damaged at byte {len(SET_ONE)}" in str(refused.value)
    assert "Restore the directory from a backup" in str(refused.value)
    assert file.read_bytes() == stored
    until(lambda: is_gone(directory))


def test_a_server_that_cannot_run_is_named_with_its_own_words(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(launch.SERVER_VARIABLE, "no-such-program")
    with pytest.raises(EmbeddedServerFailed, match="names 'no-such-program'"):
        EmbeddedServer.open(directory)
    program = directory.with_name("server")
    program.write_text("#!/bin/sh\necho I will not serve\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv(launch.SERVER_VARIABLE, str(program))
    with pytest.raises(EmbeddedServerFailed, match="I will not serve"):
        EmbeddedServer.open(directory)
    program.write_text("neither a script nor a program")
    with pytest.raises(EmbeddedServerFailed, match="Exec format error"):
        EmbeddedServer.open(directory)


@pytest.mark.parametrize("name", ["", "nul\0byte"])
def test_a_name_that_cannot_be_a_directory_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        EmbeddedServer.open(name)


def test_a_directory_that_cannot_be_private_is_refused(directory: Path) -> None:
    directory.mkdir()
    file = directory / "file"
    file.touch()
    with pytest.raises(EmbeddedServerFailed, match="is not a directory"):
        EmbeddedServer.open(file)
    with pytest.raises(EmbeddedServerFailed, match="Not a directory"):
        EmbeddedServer.open(file / "below")
    directory.chmod(0o777)
    with pytest.raises(EmbeddedServerFailed, match="others may write to it"):
        EmbeddedServer.open(directory)
    assert directory.stat().st_mode & 0o777 == 0o777
    foreign = Path("/")
    if os.geteuid() == 0:
        foreign = directory
        os.chown(directory, 12345, -1)
    with pytest.raises(EmbeddedServerFailed, match="belongs to user"):
        EmbeddedServer.open(foreign)
    if os.geteuid() == 0:
        os.chown(directory, 0, -1)
    else:
        directory.chmod(0o500)
        with pytest.raises(EmbeddedServerFailed, match="cannot be written"):
            EmbeddedServer.open(directory)
        directory.chmod(0o700)


def test_an_empty_directory_is_made_private(directory: Path) -> None:
    directory.mkdir(mode=0o755)
    directory.chmod(0o755)
    with EmbeddedServer.open(directory):
        assert directory.stat().st_mode & 0o777 == 0o700


def test_the_default_directory_comes_from_the_environment(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(directories.DIRECTORY_VARIABLE, str(directory))
    assert directories.default_directory() == directory
    monkeypatch.delenv(directories.DIRECTORY_VARIABLE)
    assert directories.default_directory() == Path.cwd() / ".headwater"
