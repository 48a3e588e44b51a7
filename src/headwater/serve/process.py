"""One process of a server: what it is given, and how it runs until it is told to stop."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from headwater.kernel.stopping import stop_on_signals

log = logging.getLogger("headwater.serve")

# Options of mallopt. Blocks up to the first size are kept by the heap, which keeps so much free
# memory at its end; larger ones go back to the kernel one by one, as before.
_MMAP_THRESHOLD: Final = (-3, 2 << 20)
_TRIM_THRESHOLD: Final = (-1, 8 << 20)


class ServerProcess(NamedTuple):
    """What a process of a server is given.

    ``number`` counts from 0 and passes to the process that takes the place of one that died, of
    ``processes``. It calls ``ready`` once it listens, and ends when ``stop`` is set. ``also`` are
    the sockets of a server that listens in several places. ``counts`` is the file in which all
    processes count; without one, -1, a process counts for itself.
    """

    number: int
    bound: socket.socket
    stop: asyncio.Event
    ready: Callable[[], None]
    also: tuple[socket.socket, ...] = ()
    processes: int = 1
    counts: int = -1


Serve: TypeAlias = Callable[[ServerProcess], Coroutine[Any, Any, None]]


def run_process(serve: Serve, sockets: Sequence[socket.socket], ready: Callable[[], None]) -> None:
    """Run ``serve`` in this process until SIGTERM or SIGINT; ``ready`` is called once it listens.

    Call it in the main thread.
    """

    async def until_stopped() -> None:
        stop = asyncio.Event()
        with stop_on_signals(stop.set):
            await serve(ServerProcess(0, sockets[0], stop, ready, tuple(sockets[1:])))

    prepare_process()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(until_stopped())


def prepare_process() -> None:
    """Let this process serve fast: with its memory at hand."""
    if loop_factory() is None:
        log.warning("uvloop is not installed: the server works, with more time for each request")
    # What is here now stays: the garbage collector takes milliseconds to look through it again.
    gc.freeze()
    _keep_freed_memory()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes an event loop: uvloop's where it is installed, else None."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _keep_freed_memory() -> None:
    """Let this process keep some MiB that requests have freed, so that the next ones find them.

    glibc gives large blocks back to the kernel as soon as they are free. A request with a large
    body would have all its pages made and cleared again, which takes as long as to read the body.
    This does nothing if the C library has no such setting, or if it was set when the process was
    started.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(*_MMAP_THRESHOLD)
    mallopt(*_TRIM_THRESHOLD)
