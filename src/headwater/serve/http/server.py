"""Serves HTTP in one process of a server, until that is told to stop."""

from __future__ import annotations

import asyncio
import logging
import resource
from dataclasses import replace
from typing import Final

from headwater.serve.connections import OpenConnections
from headwater.serve.http.connection import Handler, HttpConnection
from headwater.serve.http.limits import HttpLimits
from headwater.serve.processes import ServerProcess

log = logging.getLogger("headwater.serve")

_BACKLOG: Final = 2048
# Files and connections of the process itself.
_OWN_FILES: Final = 200


async def serve_http(process: ServerProcess, handler: Handler, limits: HttpLimits) -> None:
    """Answer requests until the process is told to stop.

    Requests that have begun by then are still answered, if they are complete and their answers are
    taken within ``limits.drain_ms``.
    """
    loop = asyncio.get_running_loop()
    limits = _within_files(limits)
    connections = OpenConnections(limits.max_connections, limits.max_anonymous, limits.max_buffered)
    server = await loop.create_server(
        lambda: HttpConnection(connections, handler, limits),
        sock=process.bound,
        backlog=_BACKLOG,
    )
    sweeping = loop.create_task(connections.sweep())
    process.ready()
    await process.stop.wait()
    server.close()
    sweeping.cancel()
    await connections.drain(limits.drain_ms / 1000)


def _within_files(limits: HttpLimits) -> HttpLimits:
    """Let the process open a file for each connection; returns lower limits where it may not."""
    needed = limits.max_connections + _OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < needed:
            fewer = max(1, allowed - _OWN_FILES)
            log.warning(
                "max_connections is %d, and this process may have %d files open: it takes %d "
                "connections; raise the limit of open files (ulimit -n)",
                limits.max_connections,
                allowed,
                fewer,
            )
            return replace(limits, max_connections=fewer)
    return limits
