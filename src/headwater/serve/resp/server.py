"""Serves RESP in one process of a server, until that is told to stop."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from typing import Final

from headwater.serve.connections import OpenConnections, allowed_connections
from headwater.serve.process import ServerProcess
from headwater.serve.resp.connection import RespConnection
from headwater.serve.resp.door import Door

_BACKLOG: Final = 2048


async def serve_resp(process: ServerProcess, door: Door, tls: ssl.SSLContext | None = None) -> None:
    """Answer commands until the process is told to stop.

    A command that has begun by then is still answered, if that takes no longer than ``drain_ms`` of
    the limits; blocked readers are disconnected at once.
    """
    loop = asyncio.get_running_loop()
    limits = door.limits
    connections = OpenConnections(
        allowed_connections(limits.max_connections, limits.max_anonymous),
        limits.max_anonymous,
        limits.max_buffered,
        partial(door.change, "resp_connections"),
    )
    server = await loop.create_server(
        lambda: RespConnection(connections, door),
        sock=process.bound,
        backlog=_BACKLOG,
        ssl=tls,
        ssl_handshake_timeout=limits.hello_ms / 1000 if tls else None,
    )
    sweeping = loop.create_task(connections.sweep())
    process.ready()
    await process.stop.wait()
    server.close()
    sweeping.cancel()
    await connections.drain(limits.drain_ms / 1000)
