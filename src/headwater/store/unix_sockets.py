"""redis-py's connections for asyncio, by the names that it has for them.

Its connection by a unix socket greets the server as soon as it is open, and again when it is asked
to: the first greeting is sent before the server's message can be read, and the server may have
closed the connection already. The one here greets once, as those by a port do.
"""

from __future__ import annotations

import asyncio

import redis.asyncio.connection
from redis.asyncio.connection import Connection, SSLConnection

__all__ = ["Connection", "SSLConnection", "UnixDomainSocketConnection"]


class UnixDomainSocketConnection(redis.asyncio.connection.UnixDomainSocketConnection):
    """A connection by a unix socket; the caller limits the time of opening it."""

    async def _connect(self) -> None:
        self._reader, self._writer = await asyncio.open_unix_connection(self.path)
