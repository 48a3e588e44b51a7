"""The parts of an application, opened for a drain: each can do its work bit by bit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeAlias

from headwater.app.parts import Part, Resources
from headwater.app.running import RunningApp
from headwater.errors import InvalidInput

# What is drained: an App, or what has a run_once that does a bit of work. That returns how much it
# did, or an Attempt, or None when there was nothing to do; run_due, of timed jobs, a list of runs.
Drainable: TypeAlias = Any
NamedPart: TypeAlias = "tuple[str, Drainable]"


def has_async_parts(part: Drainable) -> bool:
    """Return whether something is an App of which some parts need a loop."""
    return isinstance(part, RunningApp) and any(each.is_async for each in part.parts.values())


def check_no_loop() -> None:
    """Raise InvalidInput inside of a running loop: another one cannot run there."""
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        raise InvalidInput("this application has async parts; use async_drain here, and await it")


@contextlib.contextmanager
def open_parts(given: Iterable[Drainable], store: str | None, db: Any) -> Iterator[list[NamedPart]]:
    """Open the parts of each App, and name all that is given; closes what it opened."""
    with ExitStack() as opened:
        found: list[NamedPart] = []
        for one in given:
            if isinstance(one, RunningApp):
                resources = one.resources = _resources(one, store, db)
                opened.callback(_close, one, resources)
                found += _works(one.parts.values(), resources, opened)
            else:
                found.append((_name_of(one), one))
        yield found


@contextlib.asynccontextmanager
async def open_parts_async(
    given: Iterable[Drainable], store: str | None, db: Any
) -> AsyncIterator[list[NamedPart]]:
    """Do so in a running loop, where async parts can be opened, too."""
    async with contextlib.AsyncExitStack() as opened:
        found: list[NamedPart] = []
        for one in given:
            if isinstance(one, RunningApp):
                resources = one.resources = _resources(one, store, db)
                opened.callback(_close, one, resources)
                if has_async_parts(one):
                    opened.push_async_callback(resources.close_async)
                    await resources.open_async()
                inner = opened.enter_context(ExitStack())
                found += _works(one.parts.values(), resources, inner)
            else:
                found.append((_name_of(one), one))
        yield found


def _resources(app: RunningApp, store: str | None, db: Any) -> Resources:
    given = {"store": store, "db": db}
    named = {name: value for name, value in given.items() if value is not None}
    return Resources(replace(app.places, **named))


def _close(app: RunningApp, resources: Resources) -> None:
    app.resources = None
    resources.close()


def _works(parts: Iterable[Part], resources: Resources, opened: ExitStack) -> Iterator[NamedPart]:
    for part in parts:
        work: Any = part.open(resources)
        if close := getattr(work, "close", None):
            opened.callback(close)
        # The housekeeper has none: nothing is ever due for it alone.
        if hasattr(work, "run_once") or hasattr(work, "run_due"):
            yield part.name, work


def _name_of(part: Drainable) -> str:
    return getattr(part, "name", "") or type(part).__name__.lower()
