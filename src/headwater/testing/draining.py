"""Draining: all that is due is done now, in the caller's thread, and what happened is returned.

Parts take turns until none of them finds anything that is due: what one of them writes for another
is done as well. What waits for its time stays, such as a delayed job or a message that failed and
is to be retried: move the clock, and drain again.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from headwater.app.parts import Part, Resources
from headwater.app.running import RunningApp
from headwater.errors import InvalidInput, PoisonedBatch
from headwater.kernel.inputs import check_int
from headwater.timed.engine import FinishedRun
from headwater.workers.attempts import Attempt

# ── App parts ─────────────────────────────────────────────────────────────────────────────────────
# The parts of an application, opened for a drain: each can do its work bit by bit.


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


# ── Draining ──────────────────────────────────────────────────────────────────────────────────────


LIMIT: Final = 10_000


@dataclass(frozen=True)
class DrainedPart:
    """What happened in one part.

    handled   messages whose handler succeeded, rows that a streamer wrote to the log, timed runs
    failed    attempts that raised; ``errors`` are theirs, in order
    buried    messages that were given up, and are dead letters now
    unsettled messages whose outcome the store did not learn: they will be redelivered
    """

    name: str
    handled: int = 0
    failed: int = 0
    buried: int = 0
    unsettled: int = 0
    errors: tuple[BaseException, ...] = ()


@dataclass(frozen=True)
class Drained:
    """What happened in all parts together, and in each; ``parts`` is in the order of arguments."""

    parts: tuple[DrainedPart, ...] = field(default=())

    @property
    def handled(self) -> int:
        """How many messages were handled with success."""
        return sum(part.handled for part in self.parts)

    @property
    def failed(self) -> int:
        """How many attempts failed."""
        return sum(part.failed for part in self.parts)

    @property
    def buried(self) -> int:
        """How many messages were given up."""
        return sum(part.buried for part in self.parts)

    @property
    def unsettled(self) -> int:
        """How many messages were handled without the store learning of it."""
        return sum(part.unsettled for part in self.parts)

    @property
    def errors(self) -> list[BaseException]:
        """The errors of all attempts that failed, part by part."""
        return [error for part in self.parts for error in part.errors]

    def __getitem__(self, name: str) -> DrainedPart:
        """Return what happened in the part of that name; raises KeyError when there is none."""
        for part in self.parts:
            if part.name == name:
                return part
        raise KeyError(name)

    def raise_errors(self) -> None:
        """Raise the errors of handlers, as an ExceptionGroup, if there are any."""
        if self.errors:
            raise BaseExceptionGroup("handlers failed", self.errors)


class _PartTally:
    """Counts what happens in one part."""

    def __init__(self, name: str, part: Drainable) -> None:
        # Runners of timed jobs do all that is due at once.
        step = getattr(part, "run_once", None) or getattr(part, "run_due", None)
        if step is None:
            raise InvalidInput(
                f"a {type(part).__name__} cannot be drained; give an App, or what has run_once"
            )
        self.name = name
        self.step: Callable[[], Any] = step
        self.stuck = False
        # How much the last turn did.
        self.done = 0
        self.handled = self.failed = self.buried = self.unsettled = 0
        self.errors: list[BaseException] = []

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Let the part do a bit of work in the block."""
        try:
            yield
        except PoisonedBatch as error:
            # A consumer that fails holds up its stream: there is no other message to try.
            self.stuck, self.done = True, 1
            self.fail(error)

    def note(self, done: Attempt | int | list[FinishedRun] | None) -> None:
        """Count what the work of a turn has done, nothing where nothing was due."""
        if isinstance(done, list):
            self.done = len(done)
            for run in done:
                self.handled += run.error is None
                if run.error is not None:
                    self.fail(run.error)
        elif isinstance(done, Attempt):
            self.done = 1
            self.unsettled += done.unsettled is not None
            self.buried += done.buried
            self.handled += done.error is None
            if done.error is not None:
                self.fail(done.error)
        else:
            self.done = done or 0
            self.handled += self.done

    def fail(self, error: BaseException) -> None:
        """Count an attempt that failed."""
        self.failed += 1
        self.errors.append(error)

    def total(self) -> DrainedPart:
        """Return what happened."""
        counts = (self.handled, self.failed, self.buried, self.unsettled)
        return DrainedPart(self.name, *counts, tuple(self.errors))


class Draining:
    """Parts that are being drained: which one runs next, and what has happened so far."""

    def __init__(self, parts: Iterable[NamedPart], limit: int) -> None:
        self._limit = check_int(limit, "limit", 1, 1_000_000_000)
        self._tallies = [_PartTally(name, part) for name, part in parts]

    def turns(self) -> Iterator[_PartTally]:
        """Yield the part that is to do its next bit of work, until all is done."""
        busy, total = True, 0
        while busy:
            busy = False
            for tally in self._tallies:
                while not tally.stuck:
                    yield tally
                    if not tally.done:
                        break
                    busy = True
                    total += tally.done
                    if total > self._limit:
                        raise AssertionError(
                            f"more than {self._limit} messages were handled, and {tally.name} "
                            "finds more: does a handler write what it reads? If not, drain with a "
                            "larger limit="
                        )

    def result(self) -> Drained:
        """Return what happened."""
        return Drained(tuple(tally.total() for tally in self._tallies))


def drain(
    *parts: Drainable, limit: int = LIMIT, store: str | None = None, db: Any = None
) -> Drained:
    """Do all that is due, in this thread, and return what happened.

    ``parts`` are an App, workers, consumers and streamers. Handlers run one at a time, without
    threads; async ones of an App run in a loop of its own. ``store`` and ``db`` are used in the
    place of those that an App names. An error of a handler is counted, and its message is retried
    or buried as always. Raises AssertionError after ``limit`` messages, StoreError when the store
    is down, and what consumers and streamers raise.
    """
    if any(has_async_parts(part) for part in parts):
        check_no_loop()
        return asyncio.run(async_drain(*parts, limit=limit, store=store, db=db))
    with open_parts(parts, store, db) as opened:
        draining = Draining(opened, limit)
        for tally in draining.turns():
            with tally.turn():
                tally.note(_now(tally.step()))
        return draining.result()


async def async_drain(
    *parts: Drainable, limit: int = LIMIT, store: str | None = None, db: Any = None
) -> Drained:
    """Do all that is due, in this task, as ``drain`` does; parts may be async or not."""
    async with open_parts_async(parts, store, db) as opened:
        draining = Draining(opened, limit)
        for tally in draining.turns():
            with tally.turn():
                done = tally.step()
                tally.note(await done if inspect.isawaitable(done) else done)
        return draining.result()


def _now(done: Any) -> Any:
    if inspect.iscoroutine(done):
        done.close()
        raise InvalidInput("an async worker or consumer was given; use async_drain, and await it")
    return done
