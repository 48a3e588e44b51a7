"""Serves RESP in one process of a server, until that is told to stop."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headwater.aio_client import AsyncHeadwater
from headwater.serve.connections import OpenConnections, allowed_connections
from headwater.serve.processes import ServerProcess
from headwater.serve.resp.connection import RespConnection
from headwater.serve.resp.door import Door
from headwater.serve.resp.limits import RespLimits
from headwater.serve.tokens import Tokens

if TYPE_CHECKING:
    from headwater.timeline.farm.aio_farm import AsyncFarm

_BACKLOG: Final = 2048


async def serve_resp(
    process: ServerProcess,
    client: AsyncHeadwater,
    tokens: Tokens,
    limits: RespLimits,
    farm: AsyncFarm | None = None,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Answer commands until the process is told to stop.

    A command that has begun by then is still answered, if that takes no longer than
    ``limits.drain_ms``; blocked readers are disconnected at once.
    """
    loop = asyncio.get_running_loop()
    limits = replace(limits, max_connections=allowed_connections(limits.max_connections))
    door = Door(client, tokens, limits, farm)
    connections = OpenConnections(limits.max_connections, limits.max_anonymous, limits.max_buffered)
    server = await loop.create_server(
        lambda: RespConnection(connections, door), sock=process.bound, backlog=_BACKLOG, ssl=tls
    )
    sweeping = loop.create_task(connections.sweep())
    process.ready()
    await process.stop.wait()
    server.close()
    sweeping.cancel()
    await connections.drain(limits.drain_ms / 1000)
