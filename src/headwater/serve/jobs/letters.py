"""Dead letters redriven or discarded by a job of the server: many, at a rate, from a moment on.

Until a job begins it can be taken back whole; while it runs it can be stopped, and leaves the rest.
It outlives its process (see engine.py): nothing is moved twice. Letters of the last step of a
process that was killed may be missing in the count of what was done.

A step may be repeated by the process that takes the job over. It then finds that letters are gone
which it has moved already; and a message that was redriven and has failed again since is a new
letter, behind the end that was noted when the job came to that place: it is left alone.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import Meta

from headwater.errors import InvalidInput, UnknownGroup
from headwater.kernel.declaring import Scope
from headwater.kernel.failures import ALL_LETTERS, LetterFilter
from headwater.log.keys import MAX_OFFSET
from headwater.serve.fields import GivenOffsets, RangeOfOffsets
from headwater.serve.jobs.engine import HeldJob, JobKind, JobNote
from headwater.serve.tokens import Grant
from headwater.store.call import Pace
from headwater.store.letters import LetterAction, LetterBox
from headwater.views import overview
from headwater.views.record import View
from headwater.whole_store.letters import letter_box

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater

# So many letters are moved in one step at most.
_STEP: Final = 500
_MOST_NAMED: Final = 100_000
_JobState = Literal["waiting", "running", "stopping", "done", "stopped", "failed", "lost"]


# ── Sweeps ────────────────────────────────────────────────────────────────────────────────────────
# All groups and queues that have dead letters, some at a time. Streams come first and then queues,
# each by name, so that a caller that knows the last one can continue after it: a page of the
# console, or a job that another process has begun.


# So many streams or queues are asked for in one call.
_SLICE: Final = 100
_KINDS: Final = ("s", "q")


class SweepPlace(NamedTuple):
    """A place in the order: of a stream (``s``) all groups up to this one, or of a queue (``q``).

    Without a group, all of the stream. An empty kind is before everything.
    """

    kind: str = ""
    name: str = ""
    group: str = ""


class LetterHolder(NamedTuple):
    """A group or a queue with dead letters; ``group`` is empty for a queue."""

    name: str
    group: str
    dead: int = 0

    @property
    def place(self) -> SweepPlace:
        """Its place in the order."""
        return SweepPlace("s" if self.group else "q", self.name, self.group)

    @property
    def words(self) -> str:
        """The group or the queue as it is read."""
        return f"{self.name} / {self.group}" if self.group else self.name

    @property
    def key(self) -> str:
        """The group or the queue as forms and addresses spell it."""
        if self.group:
            return f"g:{quote(self.name, safe='')}/{quote(self.group, safe='')}"
        return f"q:{quote(self.name, safe='')}"


class LetterSweep:
    """Looks through the streams and queues that are allowed, behind some place."""

    def __init__(
        self, hw: AsyncHeadwater, allowed: Callable[[str], bool], after: SweepPlace
    ) -> None:
        self._hw = hw
        self._allowed = allowed
        self._after = after
        self._names: list[tuple[str, str]] | None = None
        self._at = 0

    @property
    def total(self) -> int:
        """How many streams and queues there are."""
        return len(self._names or ())

    @property
    def looked(self) -> int:
        """How many of them are behind: they were looked at now, or before this began."""
        return self._at

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self._names is not None and self._at >= len(self._names)

    @property
    def reached(self) -> SweepPlace:
        """The last stream or queue that was looked at."""
        return SweepPlace(*self._names[self._at - 1]) if self._names and self._at else self._after

    async def more(self) -> list[LetterHolder]:
        """Look at some more; returns those that have dead letters, in order."""
        names = self._names = self._names if self._names is not None else await self._open()
        some = names[self._at : self._at + _SLICE]
        self._at += len(some)
        streams = [name for kind, name in some if kind == "s"]
        queues = [name for kind, name in some if kind == "q"]
        apart = self._hw.store.kind == "cluster"
        look = overview.look_apart if apart else overview.look_together
        found = await self._hw.store.run(look(streams, queues))
        rows = sorted((row.stream, row.group.name, row.group.dead) for row in found.groups)
        holders = [LetterHolder(*row) for row in rows]
        holders += [LetterHolder(one.name, "", one.dead) for one in found.queues]
        *after, group = self._after
        # A queue may have the name of a stream.
        return [
            one for one in holders if one.dead and ([*one.place[:2]] != after or one.group > group)
        ]

    async def _open(self) -> list[tuple[str, str]]:
        streams, queues = await self._hw.streams(), await self._hw.queues()
        names = [("s", name) for name in streams if self._allowed(name)]
        names += [("q", name) for name in queues if self._allowed(name)]
        kind, name, group = self._after
        if kind:
            order = [(_KINDS.index(kind), name) for kind, name in names]
            # If some groups of a stream were looked at, the others are next.
            cut = bisect_left if group else bisect_right
            self._at = cut(order, (_KINDS.index(kind), name))
        return names


# ── The work of a job ─────────────────────────────────────────────────────────────────────────────


_Moment = Annotated[int, Meta(ge=0, le=MAX_OFFSET, description="Milliseconds since 1970.")]
_Attempts = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]


class MatchingBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters: those that fit everything that is given.

    ``error`` is part of the last error, in any case. They were given up at ``after_ms`` or later,
    and before ``before_ms``. Messages of queues have no tag.
    """

    tag: str | None = None
    error: str | None = None
    min_attempts: _Attempts | None = None
    after_ms: _Moment | None = None
    before_ms: _Moment | None = None


def letter_filter(given: MatchingBody) -> LetterFilter:
    """Return the filter of a request as the library takes it."""
    return LetterFilter(*(getattr(given, name) for name in MatchingBody.__struct_fields__))


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

    @property
    def box(self) -> LetterBox[Any]:
        """The letters of the place."""
        return letter_box(self.name, self.group)

    @property
    def named(self) -> Collection[Any] | None:
        """The letters that are named, as a walk takes them; None when all that fit are meant."""
        if self.ids is not None:
            return frozenset(self.ids)
        return None if self.offsets is None else list(_each(self.offsets))

    async def count(self, hw: AsyncHeadwater) -> int:
        """Return how many letters are named, or are there; raises UnknownGroup."""
        dead: int = await hw.store.run(self.box.count())
        if self.ids is not None:
            return len(self.ids)
        return dead if self.offsets is None else _count(self.offsets)


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
    at: str = ""
    end: str | None = None
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
        self._matching = matching
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
        try:
            if note.end is None:
                # It is noted before anything is moved.
                return _changed(note, end=await self._job.run(place.box.end())), 0.0
            named = place.named
            matching = self._matching if named is None else None
            step = await self._job.run(
                place.box.walk(self._action, matching, note.at, note.end, self._most, named)
            )
        except UnknownGroup:
            return _next_place(note), 0.0  # it was removed, and its letters with it
        looked = step.looked if named is None else step.fitted
        after = _changed(
            note,
            looked=note.looked + looked,
            done=note.done + step.done,
            gone=note.gone + step.gone,
        )
        after = _next_place(after) if step.place is None else _changed(after, at=step.place)
        return after, self._pace.rest_s(step.fitted)

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


def _changed(note: LetterNote, **words: Any) -> LetterNote:
    return msgspec.structs.replace(note, **words)


def _next_place(note: LetterNote) -> LetterNote:
    return _changed(note, place=note.place + 1, at="", end=None, found=None)


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


# ── Jobs ──────────────────────────────────────────────────────────────────────────────────────────


class LetterJobBody(msgspec.Struct, forbid_unknown_fields=True):
    """What is done to which letters: from when on, and how many a second at most.

    Letters fit ``matching``, unless their place names them. Letters that are added after the job
    has begun are left alone. ``everywhere`` stands for all groups and queues that the token may
    administer; its places are then empty.
    """

    action: Literal["redrive", "discard"]
    places: Annotated[list[LetterPlace], Meta(max_length=1000)] = []
    everywhere: bool = False
    matching: MatchingBody = msgspec.field(default_factory=MatchingBody)
    rate_per_s: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    delay_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 0


class LetterJobView(View, frozen=True, kw_only=True):
    """A job: how far it is, and how it ended.

    With ``everywhere``, it concerns all that its ``who`` may administer, and ``total`` is 0.
    ``places`` are shown without the letters that were named there; ``total`` is how many those
    were, or how many dead letters were in its places when it was asked for. ``gone`` are letters
    that had to stay: the stream no longer holds their messages. ``begins_ms`` is when it begins.
    A job that is ``lost`` has no process at the moment: the next one continues with it.
    """

    job: str
    state: _JobState
    action: Literal["redrive", "discard"]
    who: str
    places: list[LetterPlace]
    everywhere: bool = False
    matching: MatchingBody
    rate_per_s: int | None
    begins_ms: int
    total: int
    looked: int = 0
    done: int = 0
    gone: int = 0
    error: str | None = None
    noted_ms: int = 0

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in ("done", "stopped", "failed")


class _Asked(msgspec.Struct, frozen=True):
    """What a process needs to continue with a job."""

    body: LetterJobBody
    begins_ms: int
    allowed: tuple[str, ...] = ()


class LetterJobs(JobKind[LetterNote, LetterJobView]):
    """Moves dead letters, step by step; each step is noted."""

    name = "letters"
    note = LetterNote
    view = LetterJobView

    async def run(self, job: HeldJob) -> bool:
        """Wait until it begins, then move letters; returns whether all is done."""
        asked = msgspec.json.decode(job.asked, type=_Asked)
        body = asked.body
        while not job.ending and (left_ms := asked.begins_ms - job.now_ms) > 0:
            await job.wait(left_ms / 1000)
        if job.ending:
            return False
        job.note = msgspec.structs.replace(job.note, state="running")
        matching = letter_filter(body.matching)
        everywhere = None
        if body.everywhere:
            # What comes into being after it has begun is left alone, wherever it is.
            before_ms = min(body.matching.before_ms or asked.begins_ms, asked.begins_ms)
            matching = replace(matching or ALL_LETTERS, before_ms=before_ms)
            grant = Grant("job", {Scope.ADMIN: asked.allowed})
            everywhere = partial(grant.allows, Scope.ADMIN)
        work = LetterWork(
            self.hw, job, body.action, body.places, matching, body.rate_per_s, everywhere
        )
        while not job.ending and not work.is_done(job.note):
            job.note, rest_s = await work.step(job.note)
            await job.save()
            await job.wait(rest_s)
        return work.is_done(job.note)

    async def known(self) -> list[LetterJobView]:
        """Return what is known of jobs: those under way, then the newest first."""
        return sorted(await self.jobs(), key=lambda job: (job.over, -job.begins_ms))

    async def start(self, grant: Grant, body: LetterJobBody) -> LetterJobView:
        """Begin a job; raises Refused, 429, when this process has too many, and UnknownGroup."""
        total = sum([await place.count(self.hw) for place in body.places])
        seconds, microseconds = (await self.hw.store.command("TIME"))[0]
        now_ms = int(seconds) * 1000 + int(microseconds) // 1000
        note = LetterNote(state="waiting" if body.delay_ms else "running")
        view = LetterJobView(
            job=secrets.token_hex(6),
            state=note.state,
            action=body.action,
            who=grant.holder,
            everywhere=body.everywhere,
            places=[place.without_letters() for place in body.places],
            matching=body.matching,
            rate_per_s=body.rate_per_s,
            begins_ms=now_ms + body.delay_ms,
            total=total,
        )
        asked = _Asked(body, view.begins_ms, grant.patterns(Scope.ADMIN))
        await self.begin(view.job, view, asked, note)
        return view


def may_see(grant: Grant, scope: Scope, job: LetterJobView) -> bool:
    """Return whether a token has a scope on all that a job concerns."""
    if job.everywhere and job.who != grant.holder:
        return grant.everywhere(scope)
    return all(grant.allows(scope, place.name) for place in job.places)
