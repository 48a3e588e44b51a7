"""A failover that loses writes: two servers behind one address, the second a copy of the first."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Self

import redis

from tests.support.forwarder import Forwarder
from tests.support.servers import Server, until


def rows(letter: str, first: int, count: int) -> list[tuple[str, bytes]]:
    """Return messages that tell who wrote them, and at which offset."""
    return [(letter, f"{letter}{n}".encode()) for n in range(first, first + count)]


class ServerPair:
    """What ``old`` was written after ``copy`` is lost when ``url`` leads to ``new``."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.old = stack.enter_context(Server(tcp=True))
            self.new = stack.enter_context(Server(tcp=True))
            self._door = stack.enter_context(Forwarder(self.old.port))
            self._servers = stack.pop_all()
        self.url = f"redis://127.0.0.1:{self._door.port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._servers.close()

    def copy(self) -> None:
        """Replicate the old server to the new one, up to now."""
        with self.new.client() as new, self.old.client() as old:
            new.replicaof("127.0.0.1", str(self.old.port))
            until(lambda: new.info("replication")["master_link_status"] == "up")
            until(lambda: _written(new) == _written(old))
            new.replicaof("NO", "ONE")

    def fail_over(self) -> None:
        """Lead everybody to the new server."""
        self._door.switch(self.new.port)
        self._door.cut()


def _written(server: redis.Redis) -> int:
    return int(server.info("replication")["master_repl_offset"])
