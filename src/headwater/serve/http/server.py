"""Serves HTTP in one process of a server, until that is told to stop."""

from __future__ import annotations

import asyncio
from typing import Final

from headwater.serve.connections import OpenConnections
from headwater.serve.http.connection import Handler, HttpConnection
from headwater.serve.processes import ServerProcess

_BACKLOG: Final = 2048
_DRAIN_S: Final = 5.0


async def serve_http(process: ServerProcess, handler: Handler, max_body: int) -> None:
    """Answer requests until the process is told to stop; those under way are still answered.

    A body may have ``max_body`` bytes.
    """
    loop = asyncio.get_running_loop()
    connections = OpenConnections()
    server = await loop.create_server(
        lambda: HttpConnection(connections, handler, max_body),
        sock=process.bound,
        backlog=_BACKLOG,
    )
    sweeping = loop.create_task(connections.sweep())
    process.ready()
    await process.stop.wait()
    server.close()
    sweeping.cancel()
    await connections.drain(_DRAIN_S)
