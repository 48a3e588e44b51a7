"""What somebody should look at or do: since when, which promise it touches, and the cure.

One list for the console, HTTP, ``headwater doctor`` and the metrics. It is made of the sample that
everybody shares and of a few facts that are asked for now and then, however many look.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from headwater.errors import HeadwaterError
from headwater.log.types import GroupInfo, StreamInfo
from headwater.metrics.sweeps import CatchingUp, SharedAnswers, StoreSample, StoreWatch
from headwater.outbox.consumer_letters import letters_stream
from headwater.queue.types import QueueStats
from headwater.store.doctor import DoctorReport, PastChecks, examine, past_checks
from headwater.store.presence import SeenProcess, all_processes
from headwater.timed.operating import TimedJobInfo

if TYPE_CHECKING:
    # The extra `sql` brings what it needs, and a server does without.
    from headwater.outbox.status import Checkpoint, Status
    from headwater.timeline.records import InstanceStatus

# What is this young is returned as it is.
_FRESH_S: Final = 10.0
# An examination is some hundred calls. What it says of lost messages changes with the fsync mode,
# which is looked at with the facts.
EXAMINED_S: Final = 600.0
_SEEN_S: Final = 5.0
_CHECKED_S: Final = 30.0
_FIELD: Final = re.compile(rb"^(\w+):(.*?)\r?$", re.MULTILINE)
_SLOW_CALLS: Final = "32"


class LongestCall(NamedTuple):
    """The longest of the slow calls that a server remembers."""

    ms: float
    command: str
    at_ms: int


class ServerFacts(NamedTuple):
    """What the servers of a store say of themselves: sums over all, and of fsync the weakest.

    ``most_memory`` is 0 where nothing limits it. ``fsync`` is "off", "no", "everysec" or "always";
    None, like ``longest``, where the server does not show it.
    """

    version: str
    memory: int
    most_memory: int
    replicas: int
    clients: int
    fsync: str | None
    longest: LongestCall | None


class StoreFacts:
    """Asks the servers of a store about themselves, at most every ten seconds for all who ask."""

    def __init__(self, watch: StoreWatch, store_url: str | None) -> None:
        self._watch = watch
        self._url = store_url
        self._servers: ServerFacts | None = None
        self._answers = SharedAnswers(watch.clock)
        self._examined_at = -float("inf")
        self._report: DoctorReport | None = None
        self._examining: asyncio.Task[None] | None = None

    async def servers(self) -> ServerFacts | None:
        """Return what the servers say of themselves; None when they do not answer."""
        return await self._answers.get("servers", _FRESH_S, self._renewed)

    async def _renewed(self) -> ServerFacts | None:
        try:
            facts = await self._ask()
        except (HeadwaterError, TimeoutError):
            facts = None
        if _promised(facts) != _promised(self._servers):
            self._examined_at = -float("inf")
        self._servers = facts
        return facts

    async def processes(self) -> list[SeenProcess]:
        """Return the processes that report themselves to the store."""
        run = self._watch.hw.store.run
        return await self._answers.get("processes", _SEEN_S, lambda: run(all_processes()))

    async def past_checks(self) -> PastChecks:
        """Return the last verify and the last scrub that are noted in the store."""
        run = self._watch.hw.store.run
        return await self._answers.get("checks", _CHECKED_S, lambda: run(past_checks()))

    def report(self) -> DoctorReport | None:
        """Return what the doctor found last; None until the first examination is over.

        Examines the store again beside that, when the last time is ten minutes ago, or the facts
        that it depends on have changed since.
        """
        if self._watch.clock() - self._examined_at > EXAMINED_S and self._examining is None:
            self._examining = asyncio.create_task(self._examine())
        return self._report

    async def close(self) -> None:
        """Wait for an examination that is under way."""
        if self._examining is not None:
            await asyncio.wait([self._examining])

    async def _examine(self) -> None:
        try:
            self._report = await asyncio.to_thread(examine, self._url)
        except HeadwaterError:
            self._report = None
        finally:
            self._examined_at = self._watch.clock()
            self._examining = None

    async def _ask(self) -> ServerFacts:
        told = [dict(_FIELD.findall(one)) for one in await self._watch.command("INFO")]

        def total(name: bytes) -> int:
            return sum(int(one.get(name, 0)) for one in told)

        versions = (one.get(b"valkey_version") or one[b"redis_version"] for one in told)
        return ServerFacts(
            version=", ".join(sorted({version.decode() for version in versions})),
            memory=total(b"used_memory"),
            most_memory=total(b"maxmemory"),
            replicas=total(b"connected_slaves"),
            clients=total(b"connected_clients"),
            fsync=await self._watch.fsync_mode(),
            longest=await self._longest(),
        )

    async def _longest(self) -> LongestCall | None:
        try:
            slow = await self._watch.command("SLOWLOG", "GET", _SLOW_CALLS)
        except HeadwaterError:
            return None  # a managed server does not show it
        return max(map(_slow_call, itertools.chain.from_iterable(slow)), default=None)


def _promised(facts: ServerFacts | None) -> tuple[object, ...] | None:
    """Return the facts that decide whether messages can be lost."""
    return None if facts is None else (facts.version, facts.fsync, facts.replicas)


def _slow_call(entry: list[object]) -> LongestCall:
    _, seconds, microseconds, words, *_ = entry
    # For our own calls, the function; never the arguments, which may be a user's data.
    shown = [word.decode("utf-8", "replace") for word in words[:2]]  # type: ignore[index]
    name = " ".join(shown) if shown[0].upper().startswith("FCALL") else shown[0]
    return LongestCall(int(microseconds) / 1000, name, int(seconds) * 1000)  # type: ignore[call-overload]


CONSUMER: Final = "consumer:"
# Messages that nobody has taken for so long want a reader.
_UNREAD_MS: Final = 60_000
# A run of a timed job that nobody has begun so long after it was due.
_OVERDUE_MS: Final = 60_000
# Beyond this share of the memory that it may use, a store is close to refusing writes.
_FULL: Final = 0.85
# As many errors are named, of those that are most frequent.
_ERRORS: Final = 3

# What an alarm is about: the kind of the object, and its names.
About = tuple[str, ...]


class AlarmKind(NamedTuple):
    """What alarms of a kind have in common: their level, the cure, and the promise they touch.

    ``many`` is said of ``n`` objects in place of an alarm for each, with the sum of their amounts.
    """

    level: Literal["act", "look"]
    cure: str
    promise: str
    many: str = ""


_REACHED: Final = "every message reaches every group"
_HANDLED: Final = "every message is handled"
_IN_TIME: Final = "messages are handled in time"
_WHEN_DUE: Final = "timed jobs run when they are due"
_SLOW: Final = "or check why they are slow"

KINDS: Final = {
    "missed": AlarmKind(
        "act",
        "keep the stream's messages for longer, or add members to the group",
        _REACHED,
        "{n} groups missed {count} messages: evicted before they were read",
    ),
    "dead": AlarmKind(
        "look",
        "check their errors, then redrive or discard them",
        _HANDLED,
        "{n} groups and queues have {count} dead letters",
    ),
    "letters": AlarmKind(
        "look",
        "check their errors, then run headwater consumer redrive, or discard them",
        _HANDLED,
        "{n} SQL consumers have {count} dead letters",
    ),
    "paused": AlarmKind(
        "look",
        "resume it when its members or consumers should continue",
        _IN_TIME,
        "{n} groups and queues are paused, and {count} messages wait",
    ),
    "abandoned": AlarmKind(
        "look",
        "start a member, or remove the group",
        _REACHED,
        "{n} groups are abandoned: no member reads them",
    ),
    "unread": AlarmKind(
        "look",
        "start a member",
        _IN_TIME,
        "{n} groups have no member, and {count} messages wait for them",
    ),
    "behind": AlarmKind(
        "look",
        f"start more members, {_SLOW}",
        _IN_TIME,
        "{n} groups are behind, by {count} messages in all",
    ),
    "retention": AlarmKind(
        "look",
        "start it again, or remove it",
        "a stream stays within its retention",
        "{n} streams keep more than their retention allows",
    ),
    "reader": AlarmKind(
        "look",
        "check whether it runs, and its log",
        _IN_TIME,
        "{n} SQL consumers and readers are behind, by {count} messages",
    ),
    "damaged": AlarmKind(
        "act",
        "run headwater scrub",
        "nothing acknowledged is lost",
        "{n} queues have {count} damaged messages",
    ),
    "unpopped": AlarmKind(
        "look",
        "start a consumer",
        _IN_TIME,
        "{n} queues have {count} messages, and nobody pops them",
    ),
    "slow queue": AlarmKind(
        "look",
        f"start more consumers, {_SLOW}",
        _IN_TIME,
        "{n} queues have {count} messages that wait for over a minute",
    ),
    "outbox": AlarmKind(
        "act",
        "run headwater outbox stream, or an App with a streamer",
        "staged rows reach the log soon",
    ),
    "silent": AlarmKind(
        "look",
        "start it again, under the same name; what nobody replaces is shown for a day",
        _IN_TIME,
        "{n} processes ended without a word",
    ),
    "died": AlarmKind(
        "act",
        "check its log; it restarts automatically, after longer pauses each time",
        _IN_TIME,
        "{n} parts of applications have failed",
    ),
    "timed": AlarmKind(
        "look",
        "check its history, then run it now, or wait for the next run",
        _WHEN_DUE,
        "{n} timed jobs failed when they ran last",
    ),
    "overdue": AlarmKind(
        "act",
        "start a runner of its App, with room for one more job",
        _WHEN_DUE,
        "{n} timed jobs are overdue, and no runner takes them",
    ),
    "instance": AlarmKind(
        "act",
        "start it again; reads repair it, and headwater timeline walk does it at once",
        "every cluster has all timelines",
        "{n} instances of the farm are down",
    ),
    "store": AlarmKind(
        "act",
        "check the server of the store, and the network to it",
        "messages are accepted and handled",
    ),
    "durability": AlarmKind(
        "act",
        "see the store's checks: headwater doctor",
        "acknowledged messages survive a crash",
    ),
    "memory": AlarmKind(
        "act",
        "raise the limit, or shorten the retention of streams",
        "writes are accepted",
    ),
}


class Alarm(NamedTuple):
    """Something that somebody should look at (``look``) or do something about (``act``).

    ``since_ms`` is when it began; where nothing in the store says that, it is when it was first
    seen (``first_seen``). ``amount`` is how much of it there is, ``detail`` what else is known,
    ``which`` tells alarms about one object apart. One that stands for several has ``members``.
    """

    kind: str
    about: About
    text: str
    since_ms: int | None = None
    amount: int = 0
    detail: str = ""
    which: str = ""
    first_seen: bool = False
    members: tuple[Alarm, ...] = ()

    @property
    def level(self) -> Literal["act", "look"]:
        """Whether somebody should act, or look."""
        return KINDS[self.kind].level

    @property
    def cure(self) -> str:
        """What to do."""
        return KINDS[self.kind].cure

    @property
    def promise(self) -> str:
        """The promise that it touches."""
        return KINDS[self.kind].promise

    @property
    def key(self) -> str:
        """The name of the matter, however its numbers change."""
        return " ".join((self.kind, *self.about[1:], self.which)).rstrip()


class LetterErrors(NamedTuple):
    """The errors of the newest dead letters of a place: how many were read, and how many of each.

    The most frequent is first.
    """

    read: int
    counts: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        some = [f"{count:,} × {error}" for error, count in self.counts[:_ERRORS]]
        if more := sum(count for _, count in self.counts[_ERRORS:]):
            some.append(f"{more:,} others")
        return f"of the newest {self.read:,}: " + " · ".join(some)


class AlarmFacts(NamedTuple):
    """All that alarms are made of; what is None or empty was not asked for.

    ``errors`` are those of dead letters: of a group by (stream, group), of a queue by (queue,).
    """

    sample: StoreSample
    servers: ServerFacts | None = None
    report: DoctorReport | None = None
    outbox: Status | None = None
    processes: Sequence[SeenProcess] = ()
    timed: Sequence[TimedJobInfo] = ()
    instances: Sequence[InstanceStatus] = ()
    errors: Mapping[About, LetterErrors] = {}
    progress: CatchingUp | None = None
    # Why the store does not answer now, and how old the sample is then.
    missing: str | None = None


class ConsumerLetterCount(NamedTuple):
    """How many messages of a stream a SQL consumer gave up; they are in the stream ``letters``."""

    consumer: str
    stream: str
    dead: int
    letters: str


def alarms_of(facts: AlarmFacts) -> list[Alarm]:
    """Return all alarms, what needs an act first, and of these the oldest first."""
    sample = facts.sample
    found = [*_of_outbox(facts), *_of_processes(facts.processes)]
    for stream, group in sample.groups:
        found += _of_group(stream, group, facts)
    for info in sample.streams:
        found += _of_stream(info, facts)
    for queue in sample.queues:
        found += _of_queue(queue, facts)
    found += map(_of_consumer_letters, consumer_letters(sample))
    for job in facts.timed:
        found += _of_timed(job, sample.now_ms)
    found += (_of_instance(instance) for instance in facts.instances if not instance.up)
    ordered = sorted(found, key=lambda one: (one.level, one.since_ms or sample.now_ms, one.text))
    # A store that does not answer, or cannot be trusted, comes before all that is in it.
    return [*_of_store(facts), *ordered]


def counted(count: int, noun: str) -> str:
    """Spell how many of something there are."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _of_group(stream: str, group: GroupInfo, facts: AlarmFacts) -> Iterator[Alarm]:
    who, about = f"Group {group.name} of {stream}", ("group", stream, group.name)
    now_ms, behind = facts.sample.now_ms, counted(group.lag, "message")
    if group.missed:
        missed = counted(group.missed, "message")
        text = f"{who} missed {missed}: evicted before it read them"
        yield Alarm("missed", about, text, amount=group.missed)
    if group.dead:
        yield _of_letters(who, about, group.dead, facts)
    waits = group.new_since_ms is not None and now_ms - group.new_since_ms > _UNREAD_MS
    if group.paused:
        text = f"{who} is paused{f', and {behind} wait' if group.lag else ''}"
        yield Alarm("paused", about, text, amount=group.lag)
    elif group.abandoned:
        text = f"{who} is abandoned: no member reads it, and retention does not wait for it"
        yield Alarm("abandoned", about, text, group.seen_ms)
    elif group.lag and waits and now_ms - group.seen_ms > _UNREAD_MS:
        text = f"{who} is behind by {behind}: no member reads it"
        yield Alarm("unread", about, text, group.new_since_ms, group.lag)
    elif group.lag and waits:
        pace = "" if facts.progress is None else facts.progress.words(about, group.lag)
        text = f"{who} is behind by {behind}" + (f": {pace}" if pace else "")
        yield Alarm("behind", about, text, group.new_since_ms, group.lag)


def _of_letters(who: str, about: About, dead: int, facts: AlarmFacts) -> Alarm:
    errors = facts.errors.get(about[1:])
    detail = "" if errors is None else str(errors)
    return Alarm(
        "dead", about, f"{who} has {counted(dead, 'dead letter')}", amount=dead, detail=detail
    )


def _of_stream(stream: StreamInfo, facts: AlarmFacts) -> Iterator[Alarm]:
    now_ms = facts.sample.now_ms
    if stream.idle_holder:
        text = (
            f"Stream {stream.name} keeps more than its retention allows, because "
            f"{stream.idle_holder} still needs it and is inactive"
        )
        idle_ms = stream.slowest_idle_ms or 0
        yield Alarm("retention", ("stream", stream.name), text, now_ms - idle_ms)
    for reader, following in stream.readers.items():
        if stream.reader_lag_ms[reader] > _UNREAD_MS and stream.last >= following:
            yield _of_reader(stream, reader, following, facts)


def _of_reader(stream: StreamInfo, reader: str, following: int, facts: AlarmFacts) -> Alarm:
    """Return the alarm for a SQL consumer or another reader outside the log that is behind."""
    name, lag = reader.removeprefix(CONSUMER), stream.last + 1 - max(following, stream.first)
    in_sql, pace = name != reader, ""
    if (known := _checkpoint(facts.outbox, name, stream.name)) is not None:
        idle_s = known.idle_ms // 1000
        pace = f"no progress for {idle_s:,} s" if known.idle_ms > _UNREAD_MS else ""
    if not pace and facts.progress is not None:
        pace = facts.progress.words(("reader", stream.name, reader), lag)
    text = f"{'SQL consumer' if in_sql else 'Reader'} {name} on {stream.name} is behind by "
    text += counted(lag, "message") + (f": {pace}" if pace else "")
    about = ("consumer", name) if in_sql else ("stream", stream.name)
    return Alarm("reader", about, text, facts.sample.now_ms - stream.reader_lag_ms[reader], lag)


def _checkpoint(outbox: Status | None, consumer: str, stream: str) -> Checkpoint | None:
    known = () if outbox is None else outbox.checkpoints
    return next((one for one in known if (one.consumer, one.stream) == (consumer, stream)), None)


def _of_queue(queue: QueueStats, facts: AlarmFacts) -> Iterator[Alarm]:
    who, about = f"Queue {queue.name}", ("queue", queue.name)
    oldest_ms = queue.oldest_ms or 0
    if queue.damaged:
        text = f"{who} has {counted(queue.damaged, 'damaged message')}"
        yield Alarm("damaged", about, text, amount=queue.damaged)
    if queue.dead:
        yield _of_letters(who, about, queue.dead, facts)
    if queue.paused:
        yield Alarm("paused", about, f"{who} is paused", amount=queue.ready)
    elif queue.ready and oldest_ms > _UNREAD_MS:
        silent = not queue.waiting and not queue.popped_per_s
        text = f"{who} has {counted(queue.ready, 'message')} ready, "
        text += "and nobody pops it" if silent else "more than its consumers pop in a minute"
        kind = "unpopped" if silent else "slow queue"
        yield Alarm(kind, about, text, facts.sample.now_ms - oldest_ms, queue.ready)


def _of_consumer_letters(given_up: ConsumerLetterCount) -> Alarm:
    who, dead = f"{given_up.consumer} on {given_up.stream}", given_up.dead
    text = f"SQL consumer {who} has {counted(dead, 'dead letter')}"
    about = ("consumer letters", given_up.consumer)
    return Alarm("letters", about, text, amount=dead, which=given_up.stream)


def _of_outbox(facts: AlarmFacts) -> Iterator[Alarm]:
    status = facts.outbox
    if status is not None and status.backlog and not status.streaming:
        text = f"No streamer runs, and {counted(status.backlog, 'staged row')} wait in the outbox"
        oldest_ms = status.oldest_ms
        since_ms = None if oldest_ms is None else facts.sample.now_ms - oldest_ms
        yield Alarm("outbox", ("outbox",), text, since_ms)


def _of_processes(processes: Sequence[SeenProcess]) -> Iterator[Alarm]:
    for process in processes:
        note = process.note
        who = f"{note.kind} {note.name} (process {note.pid} on {note.host})"
        if process.is_silent and not process.is_replaced(processes):
            works = sorted({one.object or one.name for one in note.parts})
            text = f"{who[:1].upper()}{who[1:]} ended without a word: it was killed, or its "
            text += "machine is away" + (f"; it worked on {', '.join(works[:5])}" if works else "")
            yield Alarm("silent", ("processes",), text, process.seen_ms)
        for part in () if process.is_silent else note.parts:
            if part.why and part.status != "running":
                text = f"Part {part.name} of {who} failed: {part.why}"
                which = f"{part.name} {note.host} {note.pid}"
                yield Alarm("died", ("processes",), text, which=which)


def _of_timed(job: TimedJobInfo, now_ms: int) -> Iterator[Alarm]:
    about, who = ("timed", job.name), f"Timed job {job.name}"
    last = job.last
    if last is not None and last.outcome != "done":
        ended = "was lost with its runner" if last.outcome == "lost" else "failed"
        why = f": {last.error}" if last.error else ""
        text = f"{who}: the last run {ended} after {counted(last.attempt, 'attempt')}{why}"
        yield Alarm("timed", about, text, last.ended_ms)
    late = [run.at_ms for run in job.waiting if now_ms - run.at_ms > _OVERDUE_MS]
    if late and not job.paused and not job.running:
        yield Alarm("overdue", about, f"{who} is overdue, and no runner takes it", min(late))


def _of_instance(instance: InstanceStatus) -> Alarm:
    text = f"Instance {instance.instance} of the farm, in cluster {instance.cluster}, is down"
    text += f": {instance.fault}" if instance.fault else ""
    return Alarm("instance", ("timelines",), text, which=f"{instance.cluster} {instance.instance}")


def _of_store(facts: AlarmFacts) -> Iterator[Alarm]:
    report, servers = facts.report, facts.servers
    if facts.missing is not None:
        text = f"The store does not answer ({facts.missing}); all else is as it was before"
        yield Alarm("store", ("store",), text, facts.sample.now_ms or None)
    elif report is not None and report.verdict == "fail":
        yield Alarm("durability", ("store",), report.summary)
    if servers and servers.most_memory and servers.memory > _FULL * servers.most_memory:
        share = servers.memory / servers.most_memory
        yield Alarm("memory", ("store",), f"The store uses {share:.0%} of its memory limit")


def consumer_letters(sample: StoreSample) -> Iterator[ConsumerLetterCount]:
    """Yield what SQL consumers gave up, of those that are noted as readers of their stream."""
    read = [one for one in sample.streams if any(map(_is_consumer, one.readers))]
    if not read:
        return
    lengths = {one.name: one.length for one in sample.streams}
    # A group of the same name has the same stream, and is counted as a group.
    groups = {(row.stream, row.group.name) for row in sample.groups}
    for info in read:
        for reader in filter(_is_consumer, info.readers):
            consumer = reader.removeprefix(CONSUMER)
            letters = letters_stream(info.name, consumer)
            if lengths.get(letters) and (info.name, consumer) not in groups:
                yield ConsumerLetterCount(consumer, info.name, lengths[letters], letters)


def _is_consumer(reader: str) -> bool:
    return reader.startswith(CONSUMER)
