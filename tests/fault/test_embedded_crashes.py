"""What the embedded server promises when any of its processes is killed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
import redis

import headwater
from headwater.errors import EmbeddedServerFailed, HeadwaterError, InvalidInput, OutcomeUnknown
from headwater.kernel import instrument
from headwater.metrics.exposition import Page
from headwater.metrics.operations import OperationMetrics
from headwater.store import directory as directories
from headwater.store import embedded, supervisor
from headwater.store.embedded import EmbeddedServer
from tests.support.embedded import (
    SET_ONE,
    User,
    client,
    is_gone,
    kill_server,
    kill_supervisor,
    lay_out,
    linux_only,
    newest_file,
    pid_of,
    supervisors,
)
from tests.support.processes import sockets
from tests.support.servers import until
from tests.support.waking import check_quick

pytestmark = pytest.mark.fault


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


def test_a_restart_is_counted_by_whoever_restarts(directory: Path) -> None:
    metrics = OperationMetrics()
    with EmbeddedServer.open(directory) as server, instrument.installed(metrics):
        server.ensure_running()
        page = Page()
        metrics.add_to(page)
        assert "\nheadwater_embedded_restarts_total 0\n" in page.text(), "it was running"
        kill_server(directory)
        server.ensure_running()
        page = Page()
        metrics.add_to(page)
        assert "\nheadwater_embedded_restarts_total 1\n" in page.text()


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


# ── The embedded server belongs to its directory: when that is gone, so is the server, at once ───


def remove(directory: Path) -> None:
    shutil.rmtree(directory)


def remove_contents(directory: Path) -> None:
    for entry in directory.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def remove_data(directory: Path) -> None:
    shutil.rmtree(directory / supervisor.AOF_DIRECTORY)


def move(directory: Path) -> None:
    directory.rename(directory.with_name("moved"))


def move_parent(directory: Path) -> None:
    directory.parent.rename(directory.parent.with_name("moved-parent"))


def restore(directory: Path) -> None:
    """Put a snapshot in the place of the directory, as a restore does."""
    snapshot = directory.with_name("snapshot")
    shutil.copytree(directory, snapshot, ignore=shutil.ignore_patterns(supervisor.SOCKET))
    directory.rename(directory.with_name("old"))
    snapshot.rename(directory)


def restore_data(directory: Path) -> None:
    """Replace the files of the store one by one, as rsync does."""
    for file in (directory / supervisor.AOF_DIRECTORY).iterdir():
        copy = file.with_name(f".{file.name}.new")
        shutil.copy(file, copy)
        copy.replace(file)


def write_until_refused(stream: headwater.Stream, seconds: float = 30) -> HeadwaterError:
    """Write on; return the first error, which comes within so many seconds."""
    until = time.monotonic() + seconds
    try:
        while stream.write("a", b"after"):
            assert time.monotonic() < until, "writes are still acknowledged"
    except HeadwaterError as error:
        return error
    raise AssertionError


LOSSES = [remove, remove_contents, remove_data, move, restore, restore_data]


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_no_write_is_acknowledged_after_the_directory_is_lost(
    directory: Path, lose: Callable[[Path], None]
) -> None:
    attempts = count()

    def took_ms() -> float:
        place = directory.with_name(str(next(attempts))) / "data"
        with headwater.connect(f"embedded://{place}") as hw:
            stream = hw.stream("rides")
            stream.write("a", b"before")
            lose(place)
            begun = time.monotonic()
            error = write_until_refused(stream)
            took = (time.monotonic() - begun) * 1000
            # The call that was under way is uncertain; from then on the error says what happened.
            if isinstance(error, OutcomeUnknown):
                error = write_until_refused(stream, seconds=0)
            assert isinstance(error, EmbeddedServerFailed)
            said = str(error)
            assert str(place) in said
            assert "removed, moved or replaced" in said
            assert "connect again" in said
        return took

    check_quick(took_ms, 2000)


def test_an_async_client_is_told_the_same(directory: Path) -> None:
    async def use() -> None:
        async with headwater.aio.connect(f"embedded://{directory}") as hw:
            stream = hw.stream("rides")
            await stream.write("a", b"before")
            remove(directory)
            until = time.monotonic() + 30
            with pytest.raises((OutcomeUnknown, EmbeddedServerFailed)):  # noqa: PT012
                while await stream.write("a", b"after"):
                    assert time.monotonic() < until, "writes are still acknowledged"
            async with headwater.aio.connect(f"embedded://{directory}") as fresh:
                await fresh.stream("rides").write("a", b"new")
                with pytest.raises(EmbeddedServerFailed, match="removed, moved or replaced"):
                    await stream.write("a", b"of the old client")

    asyncio.run(use())


def test_who_connects_after_a_loss_gets_what_is_there_now(directory: Path) -> None:
    with headwater.connect(f"embedded://{directory}") as hw:
        hw.stream("rides").write("a", b"before")
        remove(directory)
        with headwater.connect(f"embedded://{directory}") as fresh:
            assert fresh.streams() == []
            fresh.stream("rides").write("a", b"new")
            with pytest.raises(HeadwaterError):
                hw.stream("rides").write("a", b"of the old client")
            assert fresh.stream("rides").info().last == 1


def test_a_directory_that_is_put_back_is_used_again(directory: Path) -> None:
    moved = directory.with_name("moved")
    with headwater.connect(f"embedded://{directory}") as hw:
        hw.stream("rides").write("a", b"one")
        directory.rename(moved)
        write_until_refused(hw.stream("rides"))
        moved.rename(directory)
        last = hw.stream("rides").info().last
        assert hw.stream("rides").write("a", b"two") == last + 1


def test_a_directory_moved_at_a_higher_level_ends_the_server(tmp_path: Path) -> None:
    directory = tmp_path / "above" / "data"
    server = EmbeddedServer.open(directory)
    lock = supervisor.lock_file(directory / supervisor.SERVER_LOCK)
    move_parent(directory)
    fcntl.flock(lock, fcntl.LOCK_SH)
    lock.close()
    with pytest.raises(EmbeddedServerFailed, match="removed, moved or replaced"):
        server.ensure_running()
    server.close()


def test_a_server_that_stays_is_watched_too(directory: Path) -> None:
    embedded.start(directory)
    lock = supervisor.lock_file(directory / supervisor.SERVER_LOCK)
    remove(directory)
    fcntl.flock(lock, fcntl.LOCK_SH)
    lock.close()


@linux_only
@pytest.mark.parametrize("stays", [False, True])
def test_a_server_whose_supervisor_was_killed_is_watched_by_the_next_one(
    directory: Path, stays: bool
) -> None:
    if stays:
        embedded.start(directory)
    with headwater.connect(f"embedded://{directory}") as hw:
        kill_supervisor(directory)
        with headwater.connect(f"embedded://{directory}"):
            until(lambda: not supervisor.is_free(directory / supervisor.SUPERVISOR_LOCK))
            # The supervisor needs no connection of its own to end the server.
            hw.store.command("CLIENT", "KILL", "TYPE", "normal")
            lock = supervisor.lock_file(directory / supervisor.SERVER_LOCK)
            remove(directory)
            until(lambda: supervisor.try_lock(lock, fcntl.LOCK_EX))
            lock.close()


@linux_only
def test_a_directory_that_is_removed_before_its_next_supervisor_watches_it_ends_the_server(
    directory: Path,
) -> None:
    program = (
        "import os, sys\n"
        "from headwater.store import supervisor\n"
        "detach = supervisor._detach\n"
        "supervisor._detach = lambda: (detach(), os.read(int(sys.argv[1]), 1))\n"
        "sys.exit(supervisor.main('adopt', sys.argv[2]))\n"
    )
    embedded.start(directory)
    kill_supervisor(directory)
    lock = supervisor.lock_file(directory / supervisor.SERVER_LOCK)
    begin, order = os.pipe()
    words = [sys.executable, "-c", program, str(begin), str(directory)]
    subprocess.run(words, pass_fds=[begin], start_new_session=True, check=True)
    remove(directory)
    os.write(order, b"!")
    until(lambda: supervisor.try_lock(lock, fcntl.LOCK_EX))
    for end in (begin, order):
        os.close(end)
    lock.close()


def test_a_parent_directory_that_cannot_be_read_is_no_obstacle(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads every directory")
    directory = tmp_path / "above" / "data"
    directory.mkdir(parents=True, mode=0o700)
    directory.parent.chmod(0o311)
    with EmbeddedServer.open(directory):
        assert embedded.status(directory).running
    directory.parent.chmod(0o700)


def test_a_rewrite_of_the_file_is_no_loss(directory: Path) -> None:
    ended = threading.Event()
    with headwater.connect(f"embedded://{directory}") as hw:
        pid = embedded.status(directory).pid

        def write() -> None:
            while not ended.is_set():
                hw.stream("rides").write_many([("a", b"x" * 100)] * 50)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(10):
                with suppress(Exception):
                    hw.store.command("BGREWRITEAOF")
                until = time.monotonic() + 20
                while b"aof_rewrite_in_progress:1" in hw.store.command("INFO", "persistence")[0]:
                    assert time.monotonic() < until
        finally:
            ended.set()
            writer.join()
        assert embedded.status(directory).pid == pid


def test_a_copy_is_a_store_of_its_own(directory: Path) -> None:
    copy = directory.with_name("copy")
    with headwater.connect(f"embedded://{directory}") as hw:
        hw.stream("rides").write("a", b"one")
        shutil.copytree(directory, copy, ignore=shutil.ignore_patterns(supervisor.SOCKET))
        with headwater.connect(f"embedded://{copy}") as other:
            other.stream("rides").write("a", b"two")
            assert other.stream("rides").info().last == 2
        assert hw.stream("rides").info().last == 1


def test_a_copy_by_hard_links_is_refused(directory: Path) -> None:
    copy = directory.with_name("copy")
    with headwater.connect(f"embedded://{directory}") as hw:
        hw.stream("rides").write("a", b"one")
    embedded.stop(directory)
    shutil.copytree(directory, copy, copy_function=os.link)
    with pytest.raises(EmbeddedServerFailed, match="hard links"):
        EmbeddedServer.open(copy)


def test_a_file_system_that_does_not_keep_locks_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with pytest.raises(EmbeddedServerFailed, match="does not keep locks"):
        EmbeddedServer.open(directory)


def test_a_file_system_that_cannot_lock_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(EmbeddedServerFailed, match="No locks available"):
        EmbeddedServer.open(directory)


@linux_only
@pytest.mark.parametrize("lose", [remove, restore])
def test_a_worker_whose_directory_is_gone_ends_with_the_error(
    lose: Callable[[Path], None], tmp_path: Path
) -> None:
    directory = tmp_path / "store"
    handled = threading.Event()
    with headwater.connect(f"embedded://{directory}") as hw:
        hw.stream("s").write("a", b"before")
        worker = headwater.Worker(hw.stream("s").group("g"), lambda _: handled.set())

        def run() -> None:
            with pytest.raises(EmbeddedServerFailed, match="removed, moved or replaced") as caught:
                worker.run()
            assert caught.value.lasting
            ended.set()

        ended = threading.Event()
        thread = threading.Thread(target=run)
        thread.start()
        assert handled.wait(60)
        lose(directory)
        assert ended.wait(60)
        thread.join()
    embedded.stop(directory, now=True)


# ── When the embedded server ends, and when it stays ─────────────────────────────────────────────


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
    until(lambda: is_gone(directory))
    with EmbeddedServer.open(directory) as server:
        assert client(server).get("one") == b"1"


# ── Which files the embedded server takes, which it repairs, and which it refuses ────────────────


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
    # With 7 and, in a transaction, 21 bytes less the file ends behind an argument.
    for cut in (1, 7, 21, size - whole - 1):
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
    monkeypatch.setenv(embedded.SERVER_VARIABLE, "no-such-program")
    with pytest.raises(EmbeddedServerFailed, match="names 'no-such-program'"):
        EmbeddedServer.open(directory)
    program = directory.with_name("server")
    program.write_text("#!/bin/sh\necho I will not serve\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv(embedded.SERVER_VARIABLE, str(program))
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


# ── How the embedded server starts, and how any number of processes share it ─────────────────────


def test_a_server_starts_from_nothing_in_under_a_second(directory: Path) -> None:
    attempts = count()

    def took_ms() -> float:
        fresh = directory.with_name(f"fresh-{next(attempts)}")
        begin = time.perf_counter()
        server = EmbeddedServer.open(fresh)
        took = (time.perf_counter() - begin) * 1000
        server.close()
        embedded.stop(fresh)
        return took

    check_quick(took_ms, 1000)


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
        opened = sockets(pid_of(directory))
        internet = {
            row.split()[9]
            for table in ("tcp", "tcp6", "udp", "udp6")
            if (process / "net" / table).exists()
            for row in (process / "net" / table).read_text().splitlines()[1:]
        }
        assert opened
        assert not opened & internet


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
        embedded.discard(directory / name)
        assert not link.is_symlink(), "nothing is left of it"


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
    monkeypatch.setenv(embedded.SERVER_VARIABLE, "redis-server")
    with EmbeddedServer.open(directory) as server:
        assert client(server).info("server").get("valkey_version") is None
        assert embedded.status(directory).version
