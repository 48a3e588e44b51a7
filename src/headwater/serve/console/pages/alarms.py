"""What somebody should look at or do: since when, which promise it touches, and the cure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.log.types import GroupInfo, StreamInfo
from headwater.metrics.first_seen import FirstSeen
from headwater.metrics.store_facts import ServerFacts
from headwater.metrics.sweeps import StoreSample
from headwater.queue.types import QueueStats
from headwater.serve.console.letter_places import Place
from headwater.serve.console.links import group_link, query, queue_link, stream_link
from headwater.serve.console.pages.sampled import ConsumerLetterCount, consumer_letters
from headwater.store.doctor import DoctorReport
from headwater.store.presence import SeenProcess

if TYPE_CHECKING:
    # The extra `sql` brings what it needs, and a server does without.
    from headwater.outbox.status import Status

# Messages that nobody has taken for so long, while nobody reads, want a reader.
_UNREAD_MS: Final = 60_000
# Beyond this share of the memory that it may use, a store is close to refusing writes.
_FULL: Final = 0.85


class AlarmButton(NamedTuple):
    """An action of the console: its words, its name, its fields, and the object it changes."""

    words: str
    do: str
    fields: dict[str, str]
    name: str


class Alarm(NamedTuple):
    """Something that somebody should look at (``look``) or do something about (``act``).

    ``since_ms`` is when it began; where nothing in the store says that, it is when it was first
    seen (``first_seen``). ``promise`` is what it touches. ``button`` is an action that helps.
    ``key`` names the matter, however its numbers change. ``kind`` is what several have in common,
    ``amount`` how much of it there is; one that stands for several of a kind has ``members``.
    """

    level: str
    text: str
    cure: str
    link: str
    promise: str
    since_ms: int | None = None
    key: str = ""
    button: AlarmButton | None = None
    first_seen: bool = False
    kind: str = ""
    amount: int = 0
    members: tuple[Alarm, ...] = ()


def alarms_of(
    sample: StoreSample,
    facts: ServerFacts | None,
    report: DoctorReport | None,
    outbox: Status | None,
    processes: Sequence[SeenProcess] = (),
) -> list[Alarm]:
    """Return all alarms, what needs an act first, and of these the oldest first."""
    found = [*_of_store(facts, report), *_of_outbox(outbox, sample.now_ms)]
    for process in processes:
        found += _of_process(process)
    for stream, group in sample.groups:
        found += _of_group(stream, group, sample.now_ms)
    for info in sample.streams:
        found += _of_stream(info, sample.now_ms)
    for queue in sample.queues:
        found += _of_queue(queue)
    found += map(_of_letters, consumer_letters(sample))
    return sorted(found, key=lambda one: (one.level, one.since_ms or sample.now_ms, one.text))


async def dated(
    found: Sequence[Alarm], seen: FirstSeen, now_ms: int, *, complete: bool
) -> list[Alarm]:
    """Return alarms with the time at which each was first seen, where nothing says when it began.

    Whoever sees a part of the store only has not ``complete`` alarms, and notes nothing.
    """
    undated = {one.key for one in found if one.since_ms is None}
    times = await seen.times(undated, now_ms) if complete else seen.known(undated)
    return [
        one._replace(since_ms=times[one.key], first_seen=True)
        if one.since_ms is None and one.key in times
        else one
        for one in found
    ]


def _of_group(stream: str, facts: GroupInfo, now_ms: int) -> Iterator[Alarm]:
    who, where = f"Group {facts.name} of {stream}", group_link(stream, facts.name)
    place = Place(stream, facts.name).key
    if facts.missed:
        yield Alarm(
            "act",
            f"{who} missed {facts.missed:,} messages: they were evicted before it read them",
            "keep the stream's messages for longer, or add members to the group",
            where,
            "every message reaches every group",
            key=f"missed {stream} {facts.name}",
            kind="missed",
            amount=facts.missed,
        )
    if facts.dead:
        yield Alarm(
            "look",
            f"{who} has {facts.dead:,} dead letter{'s' * (facts.dead != 1)}",
            "check their errors, then redrive or discard them",
            f"/dead?{query(place=place)}",
            "every message is handled",
            key=f"dead {stream} {facts.name}",
            button=_redrive(place, stream),
            kind="dead",
            amount=facts.dead,
        )
    if facts.abandoned:
        yield Alarm(
            "look",
            f"{who} is abandoned: no member reads it, and retention does not wait for it",
            "start a member, or remove the group",
            where,
            "every message reaches every group",
            facts.seen_ms,
            kind="abandoned",
            button=AlarmButton("Remove", "remove", {"stream": stream, "group": facts.name}, stream),
        )
    elif facts.lag and facts.new_since_ms and now_ms - facts.new_since_ms > _UNREAD_MS:
        silent = now_ms - facts.seen_ms > _UNREAD_MS
        yield Alarm(
            "look",
            f"{who} is behind by {facts.lag:,} messages"
            + (": no member reads it" if silent else ""),
            "start a member" if silent else "start more members, or check why they are slow",
            where,
            "messages are handled in time",
            facts.new_since_ms,
            kind="unread" if silent else "behind",
            amount=facts.lag,
        )


def _of_stream(stream: StreamInfo, now_ms: int) -> Iterator[Alarm]:
    if stream.idle_holder:
        yield Alarm(
            "look",
            f"Stream {stream.name} keeps more than its retention allows, because "
            f"{stream.idle_holder} still needs it and is inactive",
            "start it again, or remove it",
            stream_link(stream.name),
            "a stream stays within its retention",
            now_ms - (stream.slowest_idle_ms or 0),
            kind="retention",
        )


def _of_queue(queue: QueueStats) -> Iterator[Alarm]:
    link, place = queue_link(queue.name), Place(queue.name, "").key
    if queue.damaged:
        yield Alarm(
            "act",
            f"Queue {queue.name} has {queue.damaged:,} damaged messages",
            "run headwater scrub",
            link,
            "nothing acknowledged is lost",
            key=f"damaged {queue.name}",
            kind="damaged",
            amount=queue.damaged,
        )
    if queue.dead:
        yield Alarm(
            "look",
            f"Queue {queue.name} has {queue.dead:,} dead letter{'s' * (queue.dead != 1)}",
            "check their errors, then redrive or discard them",
            f"/dead?{query(place=place)}",
            "every message is handled",
            key=f"dead {queue.name}",
            button=_redrive(place, queue.name),
            kind="dead",
            amount=queue.dead,
        )
    if queue.paused:
        yield Alarm(
            "look",
            f"Queue {queue.name} is paused",
            "resume it when its consumers should continue",
            link,
            "messages are handled in time",
            key=f"paused {queue.name}",
            kind="paused",
            button=AlarmButton("Resume", "queue-state", {"queue": queue.name}, queue.name),
        )


def _of_letters(given_up: ConsumerLetterCount) -> Alarm:
    who, count = f"{given_up.consumer} on {given_up.stream}", given_up.dead
    return Alarm(
        "look",
        f"SQL consumer {who} has {count:,} dead letter{'s' * (count != 1)}",
        "check their errors, then run headwater consumer redrive, or discard them",
        "/dead#of-consumers",
        "every message is handled",
        key=f"letters {given_up.letters}",
        kind="letters",
        amount=count,
    )


def _redrive(place: str, name: str) -> AlarmButton:
    fields = {"action": "redrive", "which": "all", "place": place}
    return AlarmButton("Redrive all", "letters", fields, name)


def _of_outbox(status: Status | None, now_ms: int) -> Iterator[Alarm]:
    if status is not None and status.backlog and not status.streaming:
        yield Alarm(
            "act",
            f"No streamer runs, and {status.backlog:,} staged rows wait in the outbox",
            "run headwater outbox stream, or an App with a streamer",
            "/outbox",
            "staged rows reach the log soon",
            None if status.oldest_ms is None else now_ms - status.oldest_ms,
        )


def _of_process(process: SeenProcess) -> Iterator[Alarm]:
    note = process.note
    who = f"{note.kind} {note.name} (process {note.pid} on {note.host})"
    if process.is_silent:
        yield Alarm(
            "look",
            f"{who[:1].upper()}{who[1:]} has stopped reporting",
            "check whether it runs; it disappears from here after ten minutes",
            "/processes",
            "messages are handled in time",
            process.seen_ms,
            kind="silent",
        )
    for one in note.parts:
        if one.why and one.status != "running":
            yield Alarm(
                "act",
                f"Part {one.name} of {who} failed: {one.why}",
                "check its log; it restarts automatically, after longer pauses each time",
                "/processes",
                "messages are handled in time",
                key=f"died {one.name} {note.host} {note.pid}",
                kind="died",
            )


def _of_store(facts: ServerFacts | None, report: DoctorReport | None) -> Iterator[Alarm]:
    if report is not None and report.verdict == "fail":
        yield Alarm(
            "act",
            report.summary,
            "see the store's checks",
            "/store",
            "acknowledged messages survive a crash",
            key="doctor",
        )
    if facts and facts.most_memory and facts.memory > _FULL * facts.most_memory:
        share = facts.memory / facts.most_memory
        yield Alarm(
            "act",
            f"The store uses {share:.0%} of its memory limit",
            "raise the limit, or shorten the retention of streams",
            "/store",
            "writes are accepted",
            key="memory",
        )
