"""Gathers what alarms are made of: for a server while somebody looks, or once for a command.

Beyond the sample, a look costs the store next to nothing: facts of the servers every ten seconds,
timed jobs and dead letters that have changed, some at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

from headwater.aio_client import AsyncHeadwater
from headwater.errors import HeadwaterError, StoreError
from headwater.kernel.failures import Cause
from headwater.log import dead_letters
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.metrics.alarms import About, Alarm, AlarmFacts, LetterErrors, StoreFacts, alarms_of
from headwater.metrics.exposition import Page, label_text
from headwater.metrics.sweeps import CatchingUp, SharedAnswers, StoreSample, StoreWatch
from headwater.store.presence import SeenProcess, all_notes, keep_notes
from headwater.timed.operating import TimedJobInfo, infos_of
from headwater.timed.states import PREFIX
from headwater.whole_store.letters import letter_box

if TYPE_CHECKING:
    # The extra `sql` brings what it needs, and a server does without.
    from headwater.outbox.status import Status
    from headwater.timeline.farm.aio_farm import AsyncFarm
    from headwater.timeline.records import InstanceStatus


# The record is in the store, so that all servers show the same, even after a restart. It is
# removed when the alarm is over, and costs a call only when something begins or ends.
log = logging.getLogger("headwater.metrics")

ALARMS: Final = "hw:{alarms}"
# At most this many alarms have a recorded time; a key is cut at this many characters.
_MOST: Final = 500
_KEY_CHARS: Final = 200
# Another server may have noted or forgotten something.
_FRESH_S: Final = 60.0
# A page waits for the store no longer than this.
_NOTE_PATIENCE_S: Final = 0.5


class FirstSeen:
    """When matters were first seen; with ``writes`` they are noted, else only read."""

    def __init__(
        self, hw: AsyncHeadwater, *, writes: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._hw = hw
        self._writes = writes
        self._clock = clock
        self._read_at = -float("inf")
        self._known: dict[str, int] = {}
        # Those of them that are not noted.
        self._remembered: dict[str, int] = {}

    async def times(self, keys: Collection[str], now_ms: int) -> dict[str, int]:
        """Return since when each is seen; all that is not among the keys is over.

        A store that refuses notes is often one of the matters: this process then remembers them.
        """
        current = {key[:_KEY_CHARS] for key in keys}
        if self._clock() - self._read_at > _FRESH_S:
            await self._try(self._read())
        new = [one for one in sorted(current) if one not in self._known][:_MOST]
        over = [one for one in self._known if one not in current]
        if (new or over) and not (self._writes and await self._try(self._note(new, over))):
            for one in over:
                del self._known[one]
            self._known |= {one: self._remembered.setdefault(one, now_ms) for one in new}
        self._remembered = {one: self._remembered[one] for one in self._remembered.keys() & current}
        return self.known(keys)

    def known(self, keys: Collection[str]) -> dict[str, int]:
        """Return since when each is seen, as far as this process knows; asks and notes nothing."""
        cut = {key: key[:_KEY_CHARS] for key in keys}
        return {key: self._known[one] for key, one in cut.items() if one in self._known}

    async def _try(self, work: Coroutine[Any, Any, None]) -> bool:
        """Return whether the store took part; asks again after a while if it did not."""
        self._read_at = self._clock()
        try:
            await work
        except StoreError as error:
            log.debug("%s cannot record alarms: %s", self._hw.store.where, error)
            return False
        return True

    async def _read(self) -> None:
        noted = await self._hw.store.run(all_notes(ALARMS), _NOTE_PATIENCE_S)
        self._known = {key: note.at_ms for key, note in noted.items()}

    async def _note(self, new: list[str], over: list[str]) -> None:
        notes = dict.fromkeys(new, "")
        kept = keep_notes(ALARMS, notes, over, most=_MOST, replace=False)
        await self._hw.store.run(kept, _NOTE_PATIENCE_S)
        await self._read()


# What is asked for now and then: timed jobs, so many of those that have changed; the errors of dead
# letters, of so many places; the instances of a farm; the outbox.
_JOBS_S: Final = 10.0
_JOBS: Final = 5
_ERRORS_S: Final = 30.0
_PLACES: Final = 5
_LETTERS: Final = 200
_LETTERS_OF_QUEUE: Final = 50
_FARM_S: Final = 10.0
_OUTBOX_S: Final = 2.0
# A page does not wait longer for a farm whose instances do not answer.
_PATIENCE_S: Final = 1.0


class AlarmWatch:
    """The alarms of a store, for all who ask in a process.

    ``outbox`` asks the database how the outbox stands, if there is one. ``every_s`` is how old a
    sample may be.
    """

    def __init__(
        self,
        watch: StoreWatch,
        facts: StoreFacts,
        first_seen: FirstSeen,
        *,
        outbox: Callable[[], Awaitable[Status]] | None = None,
        farm: AsyncFarm | None = None,
    ) -> None:
        self._watch = watch
        self._facts = facts
        self._first_seen = first_seen
        self._ask_outbox = outbox
        self._farm = farm
        self._progress = CatchingUp()
        self._answers = SharedAnswers(watch.clock)
        self._processes: list[SeenProcess] = []
        self._jobs: dict[str, tuple[int, TimedJobInfo | None]] = {}
        self._jobs_at = self._errors_at = self._farm_at = -float("inf")
        self._errors: dict[About, tuple[int, LetterErrors]] = {}
        self._instances: list[InstanceStatus] = []
        self._asking: asyncio.Task[None] | None = None
        watch.follow(self._note)

    async def _note(self, sample: StoreSample) -> None:
        if sample.missing is None:
            self._progress.note(sample)

    async def close(self) -> None:
        """Stop asking."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    async def found(
        self, sample: StoreSample, *, whole: bool = True, once: bool = False
    ) -> list[Alarm]:
        """Return the alarms of a sample, each with the time at which it began or was first seen.

        A sample that is not of the ``whole`` store has those of its objects only, and notes
        nothing. Whoever looks ``once`` waits for everything that is asked for now and then.
        """
        facts = AlarmFacts(sample, progress=self._progress)
        if whole:
            facts = await self._gathered(sample, once=once)
        elif self._watch.missing is not None:
            facts = facts._replace(missing=self._watch.missing)
        errors = {place: found for place, (_, found) in self._errors.items()}
        return await self._dated(alarms_of(facts._replace(errors=errors)), sample, whole=whole)

    async def add_metrics(self, page: Page) -> None:
        """Add how many alarms there are to a page of metrics."""
        found = await self.found(self._watch.latest)
        for level in ("act", "look"):
            labels = label_text(store=self._watch.hw.store.where, level=level)
            page.add(labels, alarms=sum(one.level == level for one in found))

    async def outbox(self) -> Status | None:
        """Return how the outbox stands; None without one, and when it does not answer."""
        return await self._answers.get("outbox", _OUTBOX_S, self._renewed_outbox)

    async def _renewed_outbox(self) -> Status | None:
        try:
            return None if self._ask_outbox is None else await self._ask_outbox()
        except HeadwaterError as error:
            log.warning("alarms are without the outbox: %s", error)
            return None

    async def processes(self) -> list[SeenProcess]:
        """Return the processes that report themselves; those known last if the store is away."""
        if self._watch.missing is None:
            self._processes = await self._facts.processes()
        return self._processes

    async def _gathered(self, sample: StoreSample, *, once: bool) -> AlarmFacts:
        missing = self._watch.missing
        if missing is None:
            await self._renew_jobs(sample, once=once)
            await self._renew_errors(sample)
        await self._renew_farm(once=once)
        return AlarmFacts(
            sample,
            await self._facts.servers() if missing is None else None,
            self._facts.report(),
            await self.outbox(),
            await self.processes(),
            [info for _, info in self._jobs.values() if info is not None],
            self._instances,
            progress=self._progress,
            missing=missing,
        )

    async def _renew_jobs(self, sample: StoreSample, *, once: bool) -> None:
        """Ask how timed jobs stand of which something was written since, some at a time."""
        now = self._watch.clock()
        if now - self._jobs_at < _JOBS_S:
            return
        self._jobs_at = now
        ends = {
            one.name.removeprefix(PREFIX): one.last
            for one in sample.streams
            if one.name.startswith(PREFIX)
        }
        # Those that were asked for longest ago are first.
        self._jobs = {job: known for job, known in self._jobs.items() if job in ends}
        changed = [job for job in ends if job not in self._jobs]
        changed += [job for job, (end, _) in self._jobs.items() if ends[job] != end]
        some = changed if once else changed[:_JOBS]
        try:
            infos = {one.name: one for one in await self._watch.hw.store.run(infos_of(some))}
        except (HeadwaterError, TimeoutError) as error:
            log.debug("alarms are without news of timed jobs: %s", error)
            return
        for job in some:
            self._jobs.pop(job, None)
            self._jobs[job] = (ends[job], infos.get(job))

    async def _renew_errors(self, sample: StoreSample) -> None:
        """Read the errors of the newest dead letters, where there are most, and new ones."""
        now = self._watch.clock()
        if now - self._errors_at < _ERRORS_S:
            return
        self._errors_at = now
        counts: dict[About, int] = {
            (row.stream, row.group.name): row.group.dead for row in sample.groups
        }
        counts |= {(one.name,): one.dead for one in sample.queues}
        most = sorted((place for place in counts if counts[place]), key=lambda one: -counts[one])
        kept = {}
        for place in most[:_PLACES]:
            known = self._errors.get(place)
            if known is None or known[0] != counts[place]:
                try:
                    known = (counts[place], await self._errors_of(place))
                except (HeadwaterError, TimeoutError) as error:
                    log.debug("alarms are without the errors of %s: %s", place, error)
            if known is not None:
                kept[place] = known
        self._errors = kept

    async def _errors_of(self, place: About) -> LetterErrors:
        run = self._watch.hw.store.run
        if len(place) == 1:
            box = letter_box(place[0], None)
            page = await run(box.page("", _LETTERS_OF_QUEUE, newest=True))
            return _counted(letter.cause for letter in page.letters)
        group = GroupHandle(StreamHandle(place[0], set()), place[1], "alarms")
        return _counted(await run(dead_letters.newest_causes(group, _LETTERS)))

    async def _renew_farm(self, *, once: bool) -> None:
        """Ask the instances of the farm beside the pages: one that is down takes its time."""
        now = self._watch.clock()
        if self._farm is None or now - self._farm_at < _FARM_S:
            return
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_farm(self._farm))
        await asyncio.wait([self._asking], timeout=None if once else _PATIENCE_S)

    async def _ask_farm(self, farm: AsyncFarm) -> None:
        try:
            self._instances = await farm.status()
        except HeadwaterError as error:
            log.warning("alarms are without the farm: %s", error)
        finally:
            self._farm_at, self._asking = self._watch.clock(), None

    async def _dated(self, found: list[Alarm], sample: StoreSample, *, whole: bool) -> list[Alarm]:
        """Return alarms with the time at which each was first seen, where nothing says when.

        Whoever sees a part of the store only notes nothing.
        """
        undated = {one.key for one in found if one.since_ms is None}
        times = (
            await self._first_seen.times(undated, sample.now_ms)
            if whole and self._watch.missing is None
            else self._first_seen.known(undated)
        )
        return [
            one._replace(since_ms=times[one.key], first_seen=True)
            if one.since_ms is None and one.key in times
            else one
            for one in found
        ]


def _counted(causes: Iterable[Cause | None]) -> LetterErrors:
    counts = Counter("no error reported" if cause is None else cause.pattern for cause in causes)
    return LetterErrors(sum(counts.values()), tuple(counts.most_common()))
