"""Serves HTTP in one process of a server, until that is told to stop."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from headwater.serve.connections import OpenConnections, allowed_connections
from headwater.serve.http.connection import HttpConnection
from headwater.serve.http.handler import Handler
from headwater.serve.http.limits import HttpLimits
from headwater.serve.process import ServerProcess

_BACKLOG: Final = 2048


async def serve_http(
    process: ServerProcess,
    handler: Handler,
    limits: HttpLimits,
    tls: ssl.SSLContext | None = None,
    stopping: Callable[[], None] = lambda: None,
    changed: Callable[[int], None] = lambda _: None,
) -> None:
    """Answer requests until the process is told to stop.

    Requests that have begun by then are still answered, if they are complete and their answers are
    taken within ``limits.drain_ms``; ``stopping`` is called when that time begins.
    ``changed`` is called with 1 and -1 when a connection is opened and closed.
    """
    loop = asyncio.get_running_loop()
    allowed = allowed_connections(limits.max_connections, limits.max_anonymous)
    limits = replace(limits, max_connections=allowed)
    connections = OpenConnections(
        limits.max_connections, limits.max_anonymous, limits.max_buffered, changed
    )
    server = await loop.create_server(
        lambda: HttpConnection(connections, handler, limits),
        sock=process.bound,
        backlog=_BACKLOG,
        ssl=tls,
        ssl_handshake_timeout=limits.head_ms / 1000 if tls else None,
    )
    sweeping = loop.create_task(connections.sweep())
    process.ready()
    await process.stop.wait()
    server.close()
    sweeping.cancel()
    stopping()
    await connections.drain(limits.drain_ms / 1000)
