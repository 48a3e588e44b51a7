"""Gathers what many requests want at one moment, so that the farm is asked once for all of it.

Whatever arrives while the event loop makes one round goes into one call, and so does what arrives
while a call is under way, unless that takes long. Operations commute, so nobody can tell whether a
request went alone. Should a common call fail, each of its requests is tried on its own: one whose
keys can be served does not suffer for its neighbours.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

SIDE_BY_SIDE: Final = 4
# How long a call holds up those who come after it: most take less, and the next is larger for that.
PATIENCE_S: Final = 0.005
MOST_ITEMS: Final = 2000


@dataclass(slots=True)
class Wish(Generic[T, R]):
    """What a request wants, and who is told the result, or the error."""

    items: Sequence[T]
    done: Callable[[R | Exception], None]


class Gathering(Generic[T, R]):
    """One kind of call; ``serve`` makes it for the items of several wishes."""

    def __init__(self, serve: Callable[[list[T]], Awaitable[R]]) -> None:
        self._serve = serve
        self._waiting: deque[Wish[T, R]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._plan: asyncio.Handle | None = None

    def add(self, wish: Wish[T, R]) -> None:
        """Take a wish; it is told its result later, never before this returns."""
        self._waiting.append(wish)
        if self._plan is None and len(self._tasks) < SIDE_BY_SIDE:
            loop = asyncio.get_running_loop()
            if self._tasks:
                self._plan = loop.call_later(PATIENCE_S, self._start)
            else:
                self._plan = loop.call_soon(self._start)

    def _start(self) -> None:
        if self._plan is not None:
            self._plan.cancel()
            self._plan = None
        while self._waiting and len(self._tasks) < SIDE_BY_SIDE:
            task = asyncio.get_running_loop().create_task(self._work(self._take()))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._start()

    def _take(self) -> list[Wish[T, R]]:
        """Take the wishes of one call; a large one goes alone."""
        taken = [self._waiting.popleft()]
        count = len(taken[0].items)
        while self._waiting and count + len(self._waiting[0].items) <= MOST_ITEMS:
            taken.append(self._waiting.popleft())
            count += len(taken[-1].items)
        return taken

    async def _work(self, wishes: list[Wish[T, R]]) -> None:
        try:
            result = await self._serve([item for wish in wishes for item in wish.items])
        except Exception as error:  # noqa: BLE001  whatever it is, somebody waits to be told
            if len(wishes) == 1:
                wishes[0].done(error)
            else:
                await asyncio.gather(*(self._work([wish]) for wish in wishes))
            return
        for wish in wishes:
            wish.done(result)

    @property
    def idle(self) -> bool:
        """Whether nothing is wanted or under way."""
        return not self._tasks and not self._waiting
