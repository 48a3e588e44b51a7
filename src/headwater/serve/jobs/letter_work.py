"""The work of a job on dead letters: step by step over its places, at a rate.

A step may be repeated by the process that takes the job over. It then finds that letters are gone
which it has moved already; and a message that was redriven and has failed again since is a new
letter, behind the end that was noted when the job came to that place: it is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from headwater.errors import InvalidInput, UnknownGroup
from headwater.kernel.failures import ALL_LETTERS, LetterFilter
from headwater.log import dead_letters
from headwater.log.dead_letters import LetterAction
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.queue import dead_letters as queue_letters
from headwater.queue.dead_letters import LettersEnd
from headwater.queue.handles import QueueHandle
from headwater.serve.fields import GivenOffsets, RangeOfOffsets
from headwater.serve.jobs.engine import HeldJob, JobNote
from headwater.serve.jobs.letter_sweep import LetterHolder, LetterSweep, SweepPlace
from headwater.store.call import Pace

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater

# So many letters are moved in one step at most.
_STEP: Final = 500
_MOST_NAMED: Final = 100_000


class LetterPlace(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Where letters are: a group of a stream, or a queue; all that fit, or some of them.

    ``offsets`` are those that messages have in the stream, ``ids`` those of messages of the queue.
    """

    stream: str | None = None
    group: str | None = None
    queue: str | None = None
    offsets: GivenOffsets | None = None
    ids: Annotated[list[str], Meta(max_length=10_000)] | None = None

    @property
    def name(self) -> str:
        """The name that a token has to allow."""
        return self.queue or self.stream or ""

    @property
    def spelled(self) -> str:
        """The place as it is shown."""
        return self.queue or f"{self.stream} / {self.group}"

    def without_letters(self) -> LetterPlace:
        """Return the place alone, as it is shown of a job."""
        return LetterPlace(self.stream, self.group, self.queue)

    def check(self) -> None:
        """Check that it names one place; raises InvalidInput."""
        grouped = bool(self.stream and self.group) and self.queue is None and self.ids is None
        queued = bool(self.queue) and not (self.stream or self.group or self.offsets)
        if grouped == queued:
            raise InvalidInput("a place is a stream with its group and offsets, or a queue and ids")
        if self.offsets is not None and (named := _count(self.offsets)) > _MOST_NAMED:
            raise InvalidInput(
                f"these are {named} offsets; name {_MOST_NAMED} at most, or use matching"
            )

    async def count(self, hw: AsyncHeadwater) -> int:
        """Return how many letters are named, or are there; raises UnknownGroup."""
        if self.queue is not None:
            if self.ids is not None:
                return len(self.ids)
            return (await hw.queue(self.queue).stats()).dead
        found = await hw.stream(self.stream or "").group(self.group or "").info()
        return found.dead if self.offsets is None else _count(self.offsets)


class LetterNote(JobNote, frozen=True, kw_only=True):
    """How far a job on dead letters is: which place, from where on, up to where.

    A job on all groups and queues has its place in ``found``, and ``after`` is the last one before
    it in the order of a sweep.
    """

    state: Literal["waiting", "running", "done", "stopped", "failed"]
    looked: int = 0
    done: int = 0
    gone: int = 0
    place: int = 0
    at: int | str | None = None
    end: int | LettersEnd | None = None
    found: LetterPlace | None = None
    after: SweepPlace = SweepPlace()
    over: bool = False


class LetterWork:
    """What is left to do of a job; its note says from where on.

    With ``everywhere``, its places are all groups and queues whose names are allowed.
    """

    def __init__(
        self,
        hw: AsyncHeadwater,
        job: HeldJob,
        action: LetterAction,
        places: list[LetterPlace],
        matching: LetterFilter | None,
        rate_per_s: int | None,
        everywhere: Callable[[str], bool] | None = None,
    ) -> None:
        self._hw = hw
        self._job = job
        self._everywhere = everywhere
        self._sweep: LetterSweep | None = None
        self._holders: list[LetterHolder] = []
        self._action = action
        self._places = places
        self._matching = matching or ALL_LETTERS
        self._pace = Pace(rate_per_s)
        self._most = self._pace.step(_STEP)

    def is_done(self, note: LetterNote) -> bool:
        """Return whether nothing is left."""
        return note.over if self._everywhere else note.place >= len(self._places)

    async def step(self, note: LetterNote) -> tuple[LetterNote, float]:
        """Do a part of the work; returns how far it is then, and how many seconds to wait."""
        if self._everywhere is not None and note.found is None:
            return await self._find_place(note, self._everywhere), 0.0
        place = note.found or self._places[note.place]
        if note.end is None:
            # It is noted before anything is moved.
            return _changed(note, end=await self._end_of(place)), 0.0
        if isinstance(note.end, LettersEnd):
            after, fitted = await self._queue_step(place, note, note.end)
        elif place.offsets is not None:
            after, fitted = await self._named_step(place, note, note.end)
        else:
            after, fitted = await self._group_step(place, note, note.end)
        return after, self._pace.rest_s(fitted)

    async def _find_place(self, note: LetterNote, allowed: Callable[[str], bool]) -> LetterNote:
        """Return the note with the next place that has letters, or with how far it has looked."""
        if self._sweep is None:
            self._sweep = LetterSweep(self._hw, allowed, note.after)
        if not self._holders:
            self._holders = await self._sweep.more()
        if not self._holders:
            return _changed(note, after=self._sweep.reached, over=self._sweep.over)
        name, group, _ = holder = self._holders.pop(0)
        place = LetterPlace(stream=name, group=group) if group else LetterPlace(queue=name)
        return _changed(note, after=holder.place, found=place)

    async def _end_of(self, place: LetterPlace) -> int | LettersEnd:
        """Return where the letters of a place end now."""
        if place.queue is not None:
            handle = QueueHandle(place.queue, set(), "server")
            return await self._job.run(queue_letters.end_of_letters(handle))
        try:
            return await self._job.run(dead_letters.end_of_letters(_group(place)))
        except UnknownGroup:
            return 0  # it was removed, and its letters with it

    async def _group_step(
        self, place: LetterPlace, note: LetterNote, end: int
    ) -> tuple[LetterNote, int]:
        at = note.at if isinstance(note.at, int) else 0
        try:
            step = await self._job.run(
                dead_letters.walk(_group(place), self._action, self._matching, at, end, self._most)
            )
        except UnknownGroup:
            return _next_place(note), 0
        after = _counted(note, step.looked, step.done, step.gone)
        if step.place < 0:
            return _next_place(after), step.fitted
        return _changed(after, at=step.place), step.fitted

    async def _queue_step(
        self, place: LetterPlace, note: LetterNote, end: LettersEnd
    ) -> tuple[LetterNote, int]:
        at = note.at.encode("latin-1") if isinstance(note.at, str) else b""
        handle = QueueHandle(place.queue or "", set(), "server")
        ids = None if place.ids is None else frozenset(place.ids)
        matching = self._matching if ids is None else ALL_LETTERS
        step = await self._job.run(
            queue_letters.walk(handle, self._action, matching, at, end, self._most, ids)
        )
        after = _counted(note, step.looked if ids is None else step.fitted, step.done, 0)
        if step.place is None:
            return _next_place(after), step.fitted
        return _changed(after, at=step.place.decode("latin-1")), step.fitted

    async def _named_step(
        self, place: LetterPlace, note: LetterNote, end: int
    ) -> tuple[LetterNote, int]:
        at = note.at if isinstance(note.at, int) else 0
        some = list(islice(_each(place.offsets or []), at, at + self._most))
        if not some:
            return _next_place(note), 0
        moved = await self._job.run(dead_letters.move_named(_group(place), self._action, some, end))
        after = _counted(note, len(some), moved.returned, moved.gone)
        return _changed(after, at=at + len(some)), len(some)


def _group(place: LetterPlace) -> GroupHandle:
    return GroupHandle(StreamHandle(place.stream or "", set()), place.group or "", "server")


def _changed(note: LetterNote, **words: Any) -> LetterNote:
    return msgspec.structs.replace(note, **words)


def _next_place(note: LetterNote) -> LetterNote:
    return _changed(note, place=note.place + 1, at=None, end=None, found=None)


def _counted(note: LetterNote, looked: int, done: int, gone: int) -> LetterNote:
    return _changed(note, looked=note.looked + looked, done=note.done + done, gone=note.gone + gone)


def _count(offsets: list[int | RangeOfOffsets]) -> int:
    return sum(
        one.last - one.first + 1 if isinstance(one, RangeOfOffsets) else 1 for one in offsets
    )


def _each(offsets: list[int | RangeOfOffsets]) -> Iterator[int]:
    for one in offsets:
        if isinstance(one, RangeOfOffsets):
            yield from range(one.first, one.last + 1)
        else:
            yield one
