"""Reports of what works outside an application: a worker, a consumer, a streamer, a timed runner.

Each reports itself while it runs, one small call every few seconds over a connection that it has
anyway, and nothing in its first second. Within an App the process reports all parts together.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headwater.errors import HeadwaterError
from headwater.store.presence import BEAT_S, FIRST_S, Presence, ReportedPart

if TYPE_CHECKING:
    from headwater.store.aio_store import AsyncStore
    from headwater.store.store import Store

# A report that the store has not taken by then is left out.
_PATIENCE_S: Final = 1.0
# How long a process that stops waits for its last report.
_LAST_S: Final = 2.0
_reported: ContextVar[bool] = ContextVar("reported", default=False)


@contextlib.contextmanager
def reported_together() -> Iterator[None]:
    """Let nothing in the block report itself: one report covers all of it."""
    token = _reported.set(True)
    try:
        yield
    finally:
        _reported.reset(token)


@contextlib.contextmanager
def reporting(store: Store, report: Callable[[], ReportedPart]) -> Iterator[None]:
    """Report what a thread works on while the block runs; never raises because of it."""
    if _reported.get():
        yield
        return
    over, presence = threading.Event(), Presence("worker", program_name())

    def beat() -> None:
        rest_s = FIRST_S
        while not over.wait(rest_s):
            rest_s = BEAT_S
            with contextlib.suppress(HeadwaterError):
                store.run(presence.beat([report()]), _PATIENCE_S)
        with contextlib.suppress(HeadwaterError):
            store.run(presence.leave(), _PATIENCE_S)

    thread = threading.Thread(target=beat, name="headwater-report", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_LAST_S)


@contextlib.asynccontextmanager
async def reporting_async(
    store: AsyncStore, report: Callable[[], ReportedPart]
) -> AsyncIterator[None]:
    """Report what a task works on while the block runs; never raises because of it."""
    if _reported.get():
        yield
        return
    presence = Presence("worker", program_name())

    async def beat() -> None:
        await asyncio.sleep(FIRST_S)
        while True:
            with contextlib.suppress(HeadwaterError):
                await store.run(presence.beat([report()]), _PATIENCE_S)
            await asyncio.sleep(BEAT_S)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        with contextlib.suppress(HeadwaterError):
            await store.run(presence.leave(), _PATIENCE_S)


def program_name() -> str:
    """Return the name of the program that runs here."""
    return Path(sys.argv[0]).name or "python"
