"""What the embedded server promises when any of its processes is killed."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from headwater.kernel import instrument
from headwater.metrics.exposition import Page
from headwater.metrics.operations import OperationMetrics
from headwater.store import embedded, supervisor
from headwater.store.embedded import EmbeddedServer
from tests.support.embedded import (
    User,
    client,
    is_gone,
    kill_server,
    kill_supervisor,
    linux_only,
    pid_of,
    supervisors,
)
from tests.support.servers import until

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
