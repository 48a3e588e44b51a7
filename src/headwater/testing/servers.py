"""The servers of this process for tests: each serves one store at a time, and is emptied after it.

A server is started when there is none that is free, which takes about a tenth of a second, and ends
with the process, however that ends. What it acknowledged survives a kill of the server, not of the
machine: it writes its file without waiting for the disk.

Each store has an address of its own, which ends with it. So nothing that a test leaves behind, as a
worker in a thread or a blocked reader, can reach the store of the next test.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from headwater.errors import EmbeddedServerFailed
from headwater.store import embedded, supervisor
from headwater.store.embedded import EmbeddedServer

_PATIENCE_S = 10.0


class PooledServer:
    """A private server, which stores use one after the other."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hw-test-"))
        self._data = self._folder / "data"
        try:
            self._hold = EmbeddedServer.open(self._data)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        # One that reports a broken connection at once: the server may have been killed.
        self._admin = redis.Redis(
            unix_socket_path=self._hold.socket_path, retry=Retry(NoBackoff(), 0)
        )
        self._settle_in()

    def command(self, *words: Any) -> Any:
        """Run a command of the server; its replies are bytes."""
        return self._admin.execute_command(*words)

    def open_address(self) -> Path:
        """Return the path of a socket that leads to this server until it is closed."""
        address = self._folder / f"{secrets.token_hex(4)}.sock"
        address.symlink_to(self._hold.socket_path)
        return address

    def close_address(self, address: Path) -> None:
        """End an address: nobody can connect with it again, and open connections are closed."""
        address.unlink(missing_ok=True)
        self.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        self.command("FLUSHALL", "SYNC")

    def kill(self) -> None:
        """End the server as a crash does; returns when it is gone."""
        if (pid := embedded.status(self._data).pid) is not None:
            os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + _PATIENCE_S
        while not supervisor.is_free(self._data / supervisor.SERVER_LOCK):
            if time.monotonic() > until:
                raise EmbeddedServerFailed(f"the server of {self._data} does not end; kill it")
            time.sleep(0.001)

    def start(self) -> None:
        """Start the server again on what it had acknowledged; costs a round trip if it runs."""
        self._hold.ensure_running()
        self._settle_in()

    def discard(self) -> None:
        """End the server and remove its files."""
        self._admin.close()
        self._hold.close()
        embedded.discard(self._data)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _settle_in(self) -> None:
        self.command("CONFIG", "SET", "appendfsync", "no")


class ServerPool:
    """The servers of a process that no store uses just now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[PooledServer] = []
        self._pid = os.getpid()
        atexit.register(self.close)

    def take(self) -> PooledServer:
        """Return a server that nobody else uses: a free one, or a new one."""
        with self._lock:
            if self._pid != os.getpid():
                # A forked child: those are its parent's.
                self._free, self._pid = [], os.getpid()
            if self._free:
                return self._free.pop()
        return PooledServer()

    def give_back(self, server: PooledServer, address: Path) -> None:
        """Empty a server for the next store; one that does not answer is discarded."""
        try:
            server.close_address(address)
        except (redis.RedisError, OSError):
            server.discard()
        else:
            with self._lock:
                self._free.append(server)

    def close(self) -> None:
        """End all servers that nobody uses."""
        with self._lock:
            free, self._free = self._free, []
            if self._pid != os.getpid():
                return
        for server in free:
            server.discard()


pool = ServerPool()
