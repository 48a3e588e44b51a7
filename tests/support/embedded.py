"""Private servers of data directories for tests: clients, kills, other users, files laid out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from headwater.store import embedded, supervisor
from headwater.store.embedded import EmbeddedServer
from tests.support.servers import until

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
SET_ONE = b"*3\r\n$3\r\nSET\r\n$3\r\none\r\n$1\r\n1\r\n"


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
        # It heeds SIGINT, however this process was started.
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program + code, str(directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        finally:
            signal.signal(signal.SIGINT, before)

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
        with self.process.stdout:
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
