"""Batches what many requests ask for at one moment, so that one call is made for all of it.

Whatever arrives during one round of the event loop goes into one call, and so does what arrives
while a call is under way, unless that takes long. No client can tell whether its request went
alone. If a batch fails, each of its requests is retried alone, where that cannot do it twice: one
that can be served does not fail because of its neighbours. What was not sent yet is dropped when
its client hangs up: that one retries by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from headwater.store.faults import BRIEF_S, Caller, CallerGone, call_for

T = TypeVar("T")
R = TypeVar("R")

SIDE_BY_SIDE: Final = 4
# How long a call delays what arrives after it: most calls take less, and the next batch is larger.
PATIENCE_S: Final = 0.005
MOST_ITEMS: Final = 2000
MOST_BYTES: Final = 8 << 20


@dataclass(slots=True)
class BatchPart(Generic[T, R]):
    """What one request adds to a batch; ``done`` is called with the result, or the error.

    It is also called with the place in the batch at which the items of this part begin. ``size``
    is in bytes, where these are not bounded otherwise. Without its ``caller`` a part leaves its
    batch, unless that was sent.
    """

    items: Sequence[T]
    done: Callable[[R | Exception, int], None]
    size: int = 0
    caller: Caller | None = None
    since: float = field(default_factory=time.monotonic)

    @property
    def abandoned(self) -> bool:
        """Whether nobody waits for the part any more, and it could not be sent for a while."""
        gone = self.caller is not None and self.caller.gone
        return gone and time.monotonic() - self.since >= BRIEF_S


class Batcher(Generic[T, R]):
    """Batches calls of one kind; ``call`` makes one for the items of several requests.

    ``harmless`` says of an error whether the parts of its batch may be retried.
    """

    def __init__(
        self,
        call: Callable[[list[T]], Awaitable[R]],
        harmless: Callable[[Exception], bool] = lambda _: True,
    ) -> None:
        self._call = call
        self._harmless = harmless
        self._waiting: deque[BatchPart[T, R]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._plan: asyncio.Handle | None = None

    def add(self, part: BatchPart[T, R]) -> None:
        """Add to the next batch; ``part.done`` is called later, never before this returns."""
        self._waiting.append(part)
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
            if self._waiting[0].abandoned:
                self._waiting.popleft().done(CallerGone(), 0)
                continue
            task = asyncio.get_running_loop().create_task(self._run(self._next_batch()))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._start()

    def _next_batch(self) -> list[BatchPart[T, R]]:
        """Take the parts of one call; a large one goes alone."""
        waiting = self._waiting
        batch = [waiting.popleft()]
        count, size = len(batch[0].items), batch[0].size
        while waiting:
            if waiting[0].abandoned:
                waiting.popleft().done(CallerGone(), 0)
                continue
            count += len(waiting[0].items)
            size += waiting[0].size
            if count > MOST_ITEMS or size > MOST_BYTES:
                break
            batch.append(waiting.popleft())
        return batch

    async def _run(self, batch: list[BatchPart[T, R]]) -> None:
        task = asyncio.current_task()
        assert task is not None
        call_for(task, [part.caller for part in batch if part.caller is not None])
        try:
            result = await self._call([item for part in batch for item in part.items])
        except CallerGone as error:
            # Nothing was sent: those who still wait are served without those who are gone.
            for part in batch:
                if part.caller is not None and part.caller.gone:
                    part.done(error, 0)
            waiting = [part for part in batch if part.caller is None or not part.caller.gone]
            if waiting:
                await self._run(waiting)
            return
        except Exception as error:  # noqa: BLE001  whatever it is, a client waits for an answer
            if len(batch) > 1 and self._harmless(error):
                await asyncio.gather(*(self._run([part]) for part in batch))
            else:
                for part in batch:
                    part.done(error, 0)
            return
        at = 0
        for part in batch:
            try:
                part.done(result, at)
            except Exception as error:  # noqa: BLE001  the other parts wait for their results
                part.done(error, at)
            at += len(part.items)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and no call is under way."""
        return not self._tasks and not self._waiting
