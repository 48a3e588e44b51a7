"""Groups over a topic without I/O: a group of the same name in each partition, seen as one.

What concerns several partitions is done in one after the other. When it fails on the way, the error
says in which partition and what was done before; every operation may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from headwater.errors import HeadwaterError, InvalidInput
from headwater.failures import Failure
from headwater.inputs import DEADLINE, Duration
from headwater.log import acks, dead_letters, failing, grouping, reading
from headwater.log.ack_arguments import (
    InTopic,
    LettersInTopic,
    Span,
    letters_by_partition,
    ranges_by_partition,
)
from headwater.log.handles import GroupHandle, GroupOptions, Start, StreamHandle, check_start
from headwater.log.keys import tail_key
from headwater.log.limits import check_block, check_count, check_ms, check_name
from headwater.log.topics import TopicHandle, check_partition, in_each, in_partition
from headwater.log.types import GroupInfo, Redriven, TopicDeadLetter, TopicMessage
from headwater.store.call import Clock, Operation, Wait
from headwater.store.many import together

# One position for all partitions, or positions by partition.
TopicStart: TypeAlias = "Start | Mapping[int, Start]"

# On a cluster a blocked reader looks at one partition at a time, for this long.
TURN_MS = 20


@dataclass(slots=True)
class TopicGroupHandle:
    """A group over all partitions of a topic, as its operations see it."""

    topic: TopicHandle
    name: str
    member: str
    options: GroupOptions
    one_server: bool
    starts: Mapping[int, Start] = field(default_factory=dict)
    turn: int = field(default=-1, init=False)
    begun: bool = field(default=False, init=False)
    _members: list[GroupHandle] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        check_name(self.name, "group")
        check_name(self.member, "member")

    def open(self) -> Operation[list[GroupHandle]]:
        """Return the group's part in each partition."""
        if not self._members:
            streams = yield from self.topic.open()
            for place in self.starts:
                check_partition(place, len(streams))
            self._members = [
                GroupHandle(stream, self.name, self.member, self._options_in(place))
                for place, stream in enumerate(streams)
            ]
        return self._members

    def _options_in(self, place: int) -> GroupOptions:
        start = self.starts.get(place)
        return self.options if start is None else replace(self.options, start=start)


def open_group(
    topic: TopicHandle,
    name: str,
    member: str,
    start: TopicStart,
    max_pending: int | None,
    dead_letters: bool | str | None,
    one_server: bool,
) -> TopicGroupHandle:
    """Return the handle of a group; ``start`` may be one position, or one for each partition."""
    starts = start if isinstance(start, Mapping) else {}
    options = GroupOptions(
        "first" if isinstance(start, Mapping) else start, max_pending, dead_letters
    )
    for position in starts.values():
        check_start(position)
    return TopicGroupHandle(topic, name, member, options, one_server, starts)


def read_group(
    group: TopicGroupHandle,
    count: int,
    block_ms: Duration | float | None,
    retry_ms: Duration | None,
    expire_ms: Duration | None,
) -> Operation[list[TopicMessage]]:
    """Take up to ``count`` messages from all partitions, beginning with another one each time."""
    check_count(count)
    terms = grouping.Terms.of(retry_ms, expire_ms)
    patience = check_block(block_ms) if count else 0
    deadline = (yield Clock()) + patience
    woken: list[Any] | None = None
    while True:
        messages, news, due_ms = yield from _read_partitions(group, count, terms)
        left = deadline - (yield Clock())
        if messages or left <= 0:
            return messages
        if woken:
            yield from _complete(news, woken)
        wait_ms = min(left, grouping.WAIT_SLICE_MS, terms.retry_ms or left)
        if due_ms >= 0:
            wait_ms = min(wait_ms, due_ms)
        if not group.one_server:
            # Streams in different slots cannot be waited for together: take turns.
            news, wait_ms = news[:1], min(wait_ms, TURN_MS)
        woken = yield _wait_for(news, max(1, int(wait_ms)))


def _complete(news: list[tuple[StreamHandle, int]], woken: list[Any]) -> Operation[None]:
    """Complete writes that stopped half-way: they wake readers who then find nothing."""
    ends = {tail_key(stream.key): (stream, last) for stream, last in news}
    for tail, entries in woken:
        stream, last = ends.get(tail.decode(), (None, 0))
        if stream is not None and int(entries[0][0][2:]) > last:
            yield reading.complete(stream.key)


def _read_partitions(
    group: TopicGroupHandle, count: int, terms: grouping.Terms
) -> Operation[tuple[list[TopicMessage], list[tuple[StreamHandle, int]], int]]:
    members = yield from group.open()
    group.turn = (group.turn + 1) % len(members)
    messages: list[TopicMessage] = []
    news: list[tuple[StreamHandle, int]] = []
    due_ms = -1
    for place in (*range(group.turn, len(members)), *range(group.turn)):
        try:
            taken = yield from grouping.read_now(members[place], count - len(messages), terms)
        except HeadwaterError as error:
            if messages:
                # What this read took in other partitions must reach its caller.
                return messages, news, -1
            error.partition = place
            raise
        messages += in_partition(place, taken.messages)
        news.append((members[place].stream, taken.last))
        if taken.due_ms >= 0:
            due_ms = taken.due_ms if due_ms < 0 else min(due_ms, taken.due_ms)
        if len(messages) >= count and group.begun:
            break
    # The first read has gone to every partition: from now on the group stands in all of them.
    group.begun = True
    return messages, news, due_ms


def _wait_for(news: list[tuple[StreamHandle, int]], ms: int) -> Wait:
    keys = [tail_key(stream.key) for stream, _ in news]
    ids = [f"0-{last}" for _, last in news]
    return Wait(keys[0], ("XREAD", "COUNT", 1, "BLOCK", ms, "STREAMS", *keys, *ids), ms)


def await_news(ends: list[tuple[StreamHandle, int]], ms: int) -> Operation[list[str]]:
    """Wait until a stream goes beyond its end; returns the names of those that do."""
    tails = {tail.decode() for tail, _ in (yield _wait_for(ends, ms)) or ()}
    return [stream.name for stream, _ in ends if tail_key(stream.key) in tails]


def _in_partitions(
    group: TopicGroupHandle,
    messages: Iterable[InTopic],
    act: Callable[[GroupHandle, list[Span]], Operation[int]],
) -> Operation[int]:
    """Do something to the messages of each partition; returns the sum of what that returns."""
    places = ranges_by_partition(messages)
    members = yield from group.open()
    for place in places:
        check_partition(place, len(members))
    parts = [(place, (members[place], ranges)) for place, ranges in sorted(places.items())]
    done = yield from in_each(parts, lambda part: act(*part))
    return sum(done.values())


def ack(group: TopicGroupHandle, messages: Iterable[InTopic]) -> Operation[int]:
    """Acknowledge messages; returns how many were pending until now."""
    return (yield from _in_partitions(group, messages, acks.ack))


def nack(
    group: TopicGroupHandle, messages: Iterable[InTopic], delay_ms: Duration
) -> Operation[int]:
    """Reject messages: they are redelivered after ``delay_ms``. Returns how many were pending."""
    delay_ms = check_ms(delay_ms, "delay_ms")
    return (yield from _in_partitions(group, messages, partial(acks.nack, delay_ms=delay_ms)))


def extend(
    group: TopicGroupHandle, messages: Iterable[InTopic], retry_ms: Duration
) -> Operation[int]:
    """Put the redelivery of pending messages off to ``retry_ms`` from now; returns how many."""
    retry_ms = check_ms(retry_ms, DEADLINE, 1)
    return (yield from _in_partitions(group, messages, partial(acks.extend, retry_ms=retry_ms)))


def seek(group: TopicGroupHandle, position: TopicStart) -> Operation[dict[int, int]]:
    """Set where the group stands, in all partitions or in those that are named; returns where."""
    members = yield from group.open()
    if isinstance(position, Mapping):
        positions = dict(position)
    else:
        positions = dict.fromkeys(range(len(members)), position)
    for place, start in positions.items():
        check_partition(place, len(members))
        check_start(start)
    parts = [(place, (members[place], start)) for place, start in sorted(positions.items())]
    return (yield from in_each(parts, lambda part: grouping.seek(*part)))


def group_info(group: TopicGroupHandle) -> Operation[list[GroupInfo]]:
    """Return where the group stands in each partition."""
    return (yield from together(map(grouping.info, (yield from group.open()))))


def dead(group: TopicGroupHandle, count: int) -> Operation[list[TopicDeadLetter]]:
    """Return the oldest ``count`` dead letters of all partitions; they stay where they are."""
    members = yield from group.open()
    found = yield from together([dead_letters.dead(member, count) for member in members])
    letters = [TopicDeadLetter(place, *one) for place, some in enumerate(found) for one in some]
    letters.sort(key=lambda letter: letter.time_ms)
    return letters[:count]


def redrive(group: TopicGroupHandle, count: int) -> Operation[dict[int, Redriven]]:
    """Have up to ``count`` dead letters redelivered, partition by partition."""
    left = check_count(count)

    def redrive_rest(member: GroupHandle) -> Operation[Redriven]:
        nonlocal left
        done = yield from dead_letters.redrive(member, left)
        left -= done.returned
        return done

    return (yield from in_each(enumerate((yield from group.open())), redrive_rest))


def discard(group: TopicGroupHandle, letters: LettersInTopic | None, count: int) -> Operation[int]:
    """Forget up to ``count`` dead letters, partition by partition; returns how many."""
    left = check_count(count, most=dead_letters.MAX_LETTERS)
    wanted = None if letters is None else letters_by_partition(letters)
    members = yield from group.open()
    for place in wanted or ():
        check_partition(place, len(members))

    def discard_rest(place: int) -> Operation[int]:
        nonlocal left
        some = None if wanted is None else wanted[place]
        done = yield from dead_letters.discard(members[place], some, left)
        # All that are meant remain all: that may be repeated.
        left = left if left == dead_letters.MAX_LETTERS else left - done
        return done

    places = range(len(members)) if wanted is None else wanted
    done = yield from in_each([(place, place) for place in places], discard_rest)
    return sum(done.values())


def fail(group: TopicGroupHandle, failures: Iterable[Failure]) -> Operation[int]:
    """Report failed attempts; returns how many of the messages were still pending in them."""
    members = yield from group.open()
    places: dict[int, list[Failure]] = {}
    for failure in failures:
        if not isinstance(failure.item, TopicMessage):
            raise InvalidInput(
                f"a failure is of a message as the group read it, not of {failure.item!r}"
            )
        check_partition(failure.item.partition, len(members))
        places.setdefault(failure.item.partition, []).append(failure)
    parts = [(place, (members[place], some)) for place, some in sorted(places.items())]
    done = yield from in_each(parts, lambda part: failing.fail(*part))
    return sum(done.values())


def release(group: TopicGroupHandle, messages: Iterable[InTopic]) -> Operation[int]:
    """Return messages untried: the attempt does not count; returns how many were pending."""
    return (yield from _in_partitions(group, messages, failing.release))


def bury(
    group: TopicGroupHandle, messages: Collection[InTopic], error: BaseException | str | None
) -> Operation[int]:
    """Give messages up; without any, what has expired. Returns how many messages that concerned."""
    if messages:
        return (yield from _in_partitions(group, messages, partial(failing.bury, error=error)))
    done = yield from in_each(enumerate((yield from group.open())), dead_letters.give_up)
    return sum(buried for _, buried in done.values())


def remove(group: TopicGroupHandle) -> Operation[bool]:
    """End the group in every partition; returns whether it existed in one."""
    existed = yield from in_each(enumerate((yield from group.open())), grouping.remove)
    group.begun = False
    return any(existed.values())
