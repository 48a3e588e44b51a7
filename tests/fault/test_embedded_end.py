"""When the embedded server ends, and when it stays."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from headwater.errors import EmbeddedServerFailed
from headwater.store import embedded, supervisor
from headwater.store.embedded import EmbeddedServer
from tests.support.embedded import User, client, is_gone, pid_of
from tests.support.servers import until

pytestmark = pytest.mark.fault


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
