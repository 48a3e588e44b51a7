"""How work is asked to stop: by a call of ``set`` from anywhere, or by SIGTERM and Ctrl-C.

A program that runs until it is stopped lets signals call what stops its work:

    with stop_on_signals(worker.stop):
        worker.run()

A loop of its own waits by a StopSignal, one of asyncio by an AsyncStopSignal or asyncio.Event:

    stop = StopSignal()
    with stop_on_signals(stop.set):
        while not stop.wait(interval_s):
            ...
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import select
import signal
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SLICE_S = 0.5


@contextlib.contextmanager
def stop_on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call ``stop`` when SIGTERM or Ctrl-C comes while the block runs; it lets the work end.

    Ctrl-C once more raises KeyboardInterrupt, for who does not want to wait for the work to end.
    In a coroutine ``stop`` is called by the event loop, else between two steps of the main thread.
    SIGINT stops the work even in a process that was started with SIGINT ignored, as shells start
    programs in the background. The handlers from before come back with the end of the block.

    Raises ValueError outside the main thread, as only that receives signals.
    """
    call: Callable[[], object] = stop
    with contextlib.suppress(RuntimeError):
        call = partial(asyncio.get_running_loop().call_soon_threadsafe, stop)
    interrupted = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if number == signal.SIGINT and interrupted:
            signal.default_int_handler(number, frame)
        interrupted = interrupted or number == signal.SIGINT
        call()

    before = [(number, signal.signal(number, handle)) for number in STOP_SIGNALS]
    try:
        yield
    finally:
        for number, handler in before:
            # None is a handler that is not of Python, and that Python cannot bring back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class StopSignal:
    """A request to stop, for threads; ``set`` may be called from any thread or signal handler.

    Once set, it stays set.
    """

    def __init__(self) -> None:
        # A pipe: unlike an Event it can be polled along with a socket. Never read, so it stays
        # readable once something was written.
        self._ask, self._tell = os.pipe()
        self._set = False
        weakref.finalize(self, _close, self._ask, self._tell)

    def set(self) -> None:
        """Ask for the end."""
        if not self._set:
            self._set = True
            os.write(self._tell, b".")

    def is_set(self) -> bool:
        """Return whether somebody asked for the end."""
        return self._set

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when somebody asks for the end."""
        return self._ask

    def wait(self, seconds: float) -> bool:
        """Wait this long for the request, and return whether it came."""
        return wait_for_any([self], seconds)


def wait_for_any(signals: Iterable[StopSignal], seconds: float | None) -> bool:
    """Wait until one of them is set, at most this long; returns whether one is.

    It waits in slices. A signal of the process that comes just before a slice begins does not end
    it, and its handler runs only after that: without slices it would be lost for as long as
    nothing else happens.
    """
    poll = select.poll()
    for one in signals:
        poll.register(one, select.POLLIN)
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    left = deadline - time.monotonic()
    while not poll.poll(max(0.0, min(left, _SLICE_S)) * 1000):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
    return True


class AsyncStopSignal:
    """The same for the tasks of one event loop; ``set`` may be called from anywhere."""

    def __init__(self) -> None:
        self._set = False
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def set(self) -> None:
        """Ask for the end."""
        self._set = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)

    def is_set(self) -> bool:
        """Return whether somebody asked for the end."""
        return self._set

    async def wait(self, seconds: float) -> bool:
        """Wait this long for the request, and return whether it came."""
        self._loop = asyncio.get_running_loop()
        if seconds and not self._set:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._event.wait(), seconds)
        return self._set


def _close(*ends: int) -> None:
    for end in ends:
        os.close(end)
