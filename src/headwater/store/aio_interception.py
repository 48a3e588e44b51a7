"""Intercepted calls of an async store; see interception.py.

Written twice because that module also has what both kinds of connections share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from headwater.store.aio_connections import AsyncServerConnections, AsyncStoreConnections
from headwater.store.call import Key
from headwater.store.interception import Interceptor, MetCommands


class AsyncInterceptedConnections:
    """The connections of an async store whose calls are intercepted."""

    def __init__(self, connections: AsyncStoreConnections, interceptor: Interceptor) -> None:
        self._connections = connections
        self._interceptor = interceptor

    async def send(
        self, key: Key, command: tuple[Any, ...], *, fresh: bool, wait_s: float | None = None
    ) -> Any:
        """See StoreConnections."""
        found = self._interceptor.meet(command)
        if found is None:
            return await self._connections.send(key, command, fresh=fresh, wait_s=wait_s)
        await asyncio.sleep(found.delay_s)
        if found.before is not None:
            raise found.before
        reply = await self._connections.send(key, command, fresh=fresh, wait_s=wait_s)
        if found.after is not None:
            raise found.after
        return reply

    async def send_all(self, commands: Sequence[tuple[Key, tuple[Any, ...]]]) -> list[Any]:
        """See StoreConnections."""
        met = MetCommands(self._interceptor, commands)
        await asyncio.sleep(met.delay_s)
        return met.replies(await self._connections.send_all(met.sent) if met.sent else [])

    async def servers(self) -> list[AsyncServerConnections]:
        """See StoreConnections; commands to a single server are not intercepted."""
        return await self._connections.servers()

    async def renew(self) -> None:
        """See StoreConnections."""
        await self._connections.renew()

    async def close(self) -> None:
        """See StoreConnections."""
        await self._connections.close()
