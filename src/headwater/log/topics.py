"""Topics without I/O: n streams behind one name, and groups over all of them.

Partition i of topic ``rides`` is the stream ``rides/i``. The partition of a tag is the CRC-32 of
its UTF-8 bytes modulo n, so that any client in any language can compute it. All messages of a tag
are in one partition, in order; no order is promised between partitions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple, TypeAlias
from zlib import crc32

import pyarrow as pa

from headwater.errors import HeadwaterError, InvalidInput, PartitionMismatch, StoreError
from headwater.kernel import arrow_compute as pc
from headwater.kernel.codecs import Coder
from headwater.kernel.declaring import Param, Spelling
from headwater.kernel.failures import LetterFilter
from headwater.kernel.headers import GivenHeaders, bytes_of, check_max_bytes, first_of
from headwater.kernel.inputs import Duration, Limits, check_for_topic, refuse_own_name
from headwater.log import grouping, node, reading, retention, writing
from headwater.log.dead_letters import GroupLetters, offset_of
from headwater.log.grouping import Terms
from headwater.log.handles import (
    CodedHandle,
    GroupHandle,
    GroupOptions,
    Merge,
    R,
    Start,
    StreamHandle,
    T,
    check_start,
)
from headwater.log.keys import (
    MAX_BATCH_MESSAGES,
    MAX_NAME_BYTES,
    MAX_PARTITIONS,
    TOPICS,
    check_block,
    check_count,
    check_name,
    tail_key,
    topic_key,
)
from headwater.log.reading import extent
from headwater.log.settling import (
    Letters,
    LettersInTopic,
    letters_by_partition,
    ranges_by_partition,
)
from headwater.log.types import (
    DecodedTopicMessage,
    HeadedTopicMessage,
    Message,
    Placed,
    TopicDeadLetter,
    TopicMessage,
)
from headwater.store.call import Call, Clock, Operation, Pace, Wait
from headwater.store.letters import LetterAction, LetterPage, Moved, no_place
from headwater.store.many import together

DEFAULT_PARTITIONS = 8
PARTITION = pa.field("partition", pa.int32(), nullable=False)


class TopicHandle(CodedHandle):
    """A topic as its operations see it; its partitions are agreed on with the first use."""

    def __init__(
        self,
        name: str,
        wanted: int | None,
        registered: set[str],
        coder: Coder[Any] | None = None,
    ) -> None:
        if wanted is not None:
            check_count(wanted, "partitions", MAX_PARTITIONS)
            if not wanted:
                raise InvalidInput("a topic needs at least 1 partition")
        self.key = topic_key(name)
        # Before the topic exists: its partitions are streams, which have longer names.
        count = wanted or DEFAULT_PARTITIONS
        size, most = len(name.encode()), MAX_NAME_BYTES - len(f"/{count - 1}")
        if size > most:
            raise InvalidInput(
                f"the name of a topic of {count} partitions must have 1 to {most} bytes, "
                f"not {size}; choose another"
            )
        self.name = name
        self.wanted = wanted
        self.registered = registered
        self.coder = coder
        self._streams: list[StreamHandle] = []

    def open(self) -> Operation[list[StreamHandle]]:
        """Return the streams; the first to open a topic decides how many there are.

        Raises PartitionMismatch when another number is wanted.
        """
        if not self._streams:
            refuse_own_name(self.name, "topic")
            args = (self.wanted or 0, DEFAULT_PARTITIONS)
            has = yield Call("hw_topic_open", self.key, args, repeatable=True)
            if self.wanted is not None and self.wanted != has:
                raise PartitionMismatch(self.name, self.wanted, has)
            yield Call("hw_registry_add", TOPICS, (self.name,), repeatable=True)
            self._streams = [
                StreamHandle(f"{self.name}/{partition}", self.registered, self.coder)
                for partition in range(has)
            ]
        return self._streams

    def across(self, merge: Merge[R], act: Callable[[StreamHandle], Operation[R]]) -> Operation[R]:
        """Do in each partition what ``act`` does, and merge what that returns."""
        return merge((yield from in_all(self, act)).values())

    def decoded(self, messages: list[TopicMessage]) -> list[Any]:
        """Return messages with their values decoded."""
        return messages if self.coder is None else list(map(self._decoded_message, messages))

    def _decoded_message(self, m: TopicMessage) -> TopicMessage[Any]:
        assert self.coder is not None
        where = ("message", m.offset, "of topic", self.name, "partition", m.partition)
        data = self.coder.decode(m.value, *where)
        made: Callable[..., TopicMessage[Any]] = DecodedTopicMessage
        return made(m.partition, m.offset, m.tag, m.value, m.time_ms, m.attempt, data, m.headers)

    def forget(self) -> None:
        """Ask again at the next use."""
        self._streams = []


def in_each(
    parts: Iterable[tuple[int, T]], act: Callable[[T], Operation[R]]
) -> Operation[dict[int, R]]:
    """Do something in one partition after the other; returns what that returned in each.

    An error says in which partition it happened, and what was done in others before.
    """
    done: dict[int, R] = {}
    for partition, part in parts:
        try:
            done[partition] = yield from act(part)
        except HeadwaterError as error:
            error.partition, error.partitions_done = partition, done
            raise
    return done


def in_all(
    target: TopicHandle | TopicGroupHandle, act: Callable[[Any], Operation[R]]
) -> Operation[dict[int, R]]:
    """Do to the stream of each partition, or to a group in it, what ``act`` does; see in_each."""
    return (yield from in_each(enumerate((yield from target.open())), act))


def in_named(
    group: TopicGroupHandle, parts: Mapping[int, T], act: Callable[[GroupHandle, T], Operation[R]]
) -> Operation[dict[int, R]]:
    """Do something in the partitions that are named, in order, with what is named there."""
    members = yield from group.open()
    for partition in parts:
        check_partition(partition, len(members))
    each = [(partition, (members[partition], part)) for partition, part in sorted(parts.items())]
    return (yield from in_each(each, lambda part: act(*part)))


def in_partition(partition: int, messages: Iterable[Message]) -> list[TopicMessage]:
    """Return messages of the stream of a partition as messages of the topic."""
    return [
        TopicMessage(partition, m.offset, m.tag, m.value, m.time_ms, m.attempt)
        if type(m) is Message
        else HeadedTopicMessage(
            partition, m.offset, m.tag, m.value, m.time_ms, m.attempt, m.headers
        )
        for m in messages
    ]


def check_partition(partition: int, partitions: int) -> None:
    """Refuse a partition that is not there."""
    if (
        isinstance(partition, bool)
        or not isinstance(partition, int)
        or not 0 <= partition < partitions
    ):
        raise InvalidInput(f"partition {partition!r} is not one of 0 to {partitions - 1}")


def partition_of(tag: str, partitions: int) -> int:
    """Return the partition of a tag."""
    return crc32(tag.encode()) % partitions


def places_of(tags: pa.Array, partitions: int) -> pa.Array:
    """Return the partition of each tag; each distinct one is hashed once."""
    encoded = tags.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    hashed = pa.array([partition_of(tag, partitions) for tag in distinct], pa.int32())
    return hashed.take(encoded.indices)


def spread(batch: pa.RecordBatch, partitions: pa.Array) -> dict[int, pa.RecordBatch]:
    """Return the rows of each partition, in their order."""
    return {
        partition: batch.filter(pc.equal(partitions, partition))
        for partition in sorted(partitions.unique().to_pylist())
    }


def write(
    topic: TopicHandle,
    tag: str,
    value: bytes | str,
    backlog: int | None,
    headers: GivenHeaders | None = None,
    producer: str | None = None,
    sequence: int | None = None,
) -> Operation[Placed]:
    """Append one message to the partition of its tag."""
    if not isinstance(tag, str):
        raise InvalidInput(f"a tag must be a str, not {type(tag).__name__}")
    streams = yield from topic.open()
    partition = partition_of(tag, len(streams))
    offset = yield from writing.write(
        streams[partition], tag, value, backlog, headers, producer, sequence
    )
    return Placed(partition, offset)


def append(
    topic: TopicHandle,
    batch: pa.RecordBatch,
    backlog: int | None,
    producer: str | None,
    sequence: int | None,
) -> Operation[dict[int, range]]:
    """Append a batch, each part to its partition; atomic within each partition."""
    node.check_batch(batch)
    streams = yield from topic.open()
    parts = spread(batch, places_of(batch.column("tag"), len(streams)))
    each = [(partition, (streams[partition], part)) for partition, part in parts.items()]
    return (
        yield from in_each(each, lambda part: writing.append(*part, backlog, producer, sequence))
    )


def infos(
    target: TopicHandle | TopicGroupHandle, info: Callable[[Any], Operation[R]]
) -> Operation[list[R]]:
    """Return the state of each partition, or of a group in each, by one round trip for all."""
    return (yield from together(map(info, (yield from target.open()))))


def delete(topic: TopicHandle) -> Operation[bool]:
    """Remove a topic with all its streams; returns whether it existed."""
    # To open a topic creates it.
    if (yield from reading.partitions_of(topic.name)):
        yield from in_all(topic, retention.delete)
    topic.forget()
    existed = yield Call("hw_topic_delete", topic.key, repeatable=True)
    yield Call("hw_registry_remove", TOPICS, (topic.name,), repeatable=True)
    return bool(existed)


def with_partition(batch: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    """Return a batch with a column for the partition before the others."""
    column = pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows)
    return batch.add_column(0, PARTITION, column)


# Groups over a topic without I/O: a group of the same name in each partition, seen as one.
#
# An operation on several partitions is done in one after the other. When it fails half-way, the
# error names the partition and what was done before; every operation may be repeated.


# One position for all partitions, or positions by partition.
TopicStart: TypeAlias = "Start | Mapping[int, Start]"
TopicPosition: TypeAlias = Annotated[
    TopicStart,
    Param(
        "An offset, first or last, in all partitions or by partition.",
        Spelling.POSITION_BY_PARTITION,
        called="to",
    ),
]


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
    owned: Callable[[], list[tuple[int, int]]] | None = field(default=None, init=False)
    _members: list[GroupHandle] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        check_name(self.name, "group")
        check_name(self.member, "member")

    def open(self) -> Operation[list[GroupHandle]]:
        """Return the group's part in each partition."""
        if not self._members:
            streams = yield from self.topic.open()
            for partition in self.starts:
                check_partition(partition, len(streams))
            self._members = [
                GroupHandle(
                    *(stream, self.name, self.member, self._options_in(partition), self.topic.name)
                )
                for partition, stream in enumerate(streams)
            ]
            if self.options.ordered:
                self.keep_order(self.owned)
        return self._members

    def settle(
        self,
        given: Iterable[Any],
        act: Callable[[GroupHandle, Any], Operation[int]],
        parts_of: Callable[[Iterable[Any]], dict[int, Any]] = ranges_by_partition,
    ) -> Operation[int]:
        """Do to messages what ``act`` does, partition by partition; returns the sum."""
        return sum((yield from in_named(self, parts_of(given), act)).values())

    def across(self, merge: Merge[R], act: Callable[[GroupHandle], Operation[R]]) -> Operation[R]:
        """Do to the group in each partition what ``act`` does, and merge what that returns."""
        return merge((yield from in_all(self, act)).values())

    def check_limits(self, limits: Limits) -> None:
        """Refuse limits in all: no call sees all partitions."""
        check_for_topic(limits)

    def keep_order(self, owned: Callable[[], list[tuple[int, int]]] | None) -> None:
        """Have the group keep the order of each tag, with the next read."""
        self.options = replace(self.options, ordered=True)
        self.owned = owned
        for partition, member in enumerate(self._members):
            member.keep_order(self._owned_in(partition))

    def _owned_in(self, partition: int) -> Callable[[], list[int]] | None:
        owned = self.owned
        if owned is None:
            return None
        return lambda: [offset for number, offset in owned() if number == partition]

    def _options_in(self, partition: int) -> GroupOptions:
        start = self.starts.get(partition)
        return self.options if start is None else replace(self.options, start=start)


def open_group(
    topic: TopicHandle,
    name: str,
    member: str,
    start: TopicStart,
    max_pending: int | None,
    dead_letters: bool | str | None,
    *,
    ordered: bool,
    one_server: bool,
) -> TopicGroupHandle:
    """Return the handle of a group; ``start`` may be one position, or one for each partition."""
    starts = start if isinstance(start, Mapping) else {}
    options = GroupOptions(
        "first" if isinstance(start, Mapping) else start, max_pending, dead_letters, ordered
    )
    for position in starts.values():
        check_start(position)
    return TopicGroupHandle(topic, name, member, options, one_server, starts)


def seek(group: TopicGroupHandle, position: TopicStart) -> Operation[dict[int, int]]:
    """Set the position of the group, in all partitions or in those named; returns it."""
    if isinstance(position, Mapping):
        positions = dict(position)
    else:
        positions = dict.fromkeys(range(len((yield from group.open()))), position)
    for start in positions.values():
        check_start(start)
    return (yield from in_named(group, positions, grouping.seek))


def act(
    group: TopicGroupHandle,
    action: LetterAction,
    letters: LettersInTopic | None,
    matching: LetterFilter | None,
    count: int | None,
    pace: Pace,
    returned: Callable[[Moved], R],
) -> Operation[dict[int, R]]:
    """Redrive or discard up to ``count`` dead letters; returns what is ``returned`` of each."""
    left = count

    def act_on_rest(member: GroupHandle, some: Letters | None) -> Operation[R]:
        nonlocal left
        moved = yield from GroupLetters(member).act(action, some, matching, left, pace)
        left = None if left is None else left - moved.done
        return returned(moved)

    return (yield from in_named(group, (yield from _letters(group, letters)), act_on_rest))


def _letters(
    group: TopicGroupHandle, letters: LettersInTopic | None
) -> Operation[Mapping[int, Letters | None]]:
    """Return the letters that are meant in each partition; None means all."""
    if letters is not None:
        return letters_by_partition(letters)
    return dict.fromkeys(range(len((yield from group.open()))))


def topic_group(topic: str, name: str) -> TopicGroupHandle:
    """Return a group over a topic as nobody's, to look at it and at its letters."""
    handle = TopicHandle(topic, None, set())
    return open_group(
        *(handle, name, "letters", "first", None, None), ordered=False, one_server=True
    )


# The letters of so many partitions are read at once; those that are not wanted are dropped then.
TOGETHER = 4


def dead(
    group: TopicGroupHandle,
    count: int,
    matching: LetterFilter | None,
    max_bytes: int | None = None,
) -> Operation[list[TopicDeadLetter]]:
    """Return the oldest ``count`` dead letters of all partitions that fit; see LetterBox.listed."""
    check_count(count, most=MAX_BATCH_MESSAGES)
    return (yield from list_dead(group, count, matching, max_bytes)).letters


def list_dead(
    group: TopicGroupHandle,
    count: int,
    matching: LetterFilter | None = None,
    max_bytes: int | None = None,
    place: str = "",
) -> Operation[LetterPage[TopicDeadLetter]]:
    """Do as dead does, from a place on: of each partition its own, with points between them.

    A partition without one is over.
    """
    room = check_max_bytes(max_bytes)
    members = yield from group.open()
    begin = [part if part else None for part in place.split(".")] if place else [""] * len(members)
    if len(begin) != len(members):
        raise no_place(place)
    going_on = list(begin)
    letters: list[TopicDeadLetter] = []
    # What is later than this may come after letters that are not read yet.
    until_ms: float = float("inf")
    for start in range(0, len(members), TOGETHER):
        some = {
            n: at for n, at in enumerate(begin[: start + TOGETHER]) if n >= start and at is not None
        }
        pages = yield from together(
            [GroupLetters(members[n]).listed(count, matching, room, at) for n, at in some.items()]
        )
        for n, page in zip(some, pages, strict=True):
            letters += [TopicDeadLetter(n, *letter) for letter in page.letters]
            going_on[n] = page.place
            if page.place is not None and page.letters:
                until_ms = min(until_ms, page.letters[-1].time_ms)
        letters.sort(key=lambda letter: letter.time_ms)
        timely = [letter for letter in letters if letter.time_ms <= until_ms]
        kept = first_of(timely[:count], room)
        for letter in letters[len(kept) :]:
            at = going_on[letter.partition]
            earliest = letter.offset if at is None else min(offset_of(at), letter.offset)
            going_on[letter.partition] = str(earliest)
            until_ms = min(until_ms, letter.time_ms)
        letters = kept
    more = any(at is not None for at in going_on)
    return LetterPage(letters, ".".join(at or "" for at in going_on) if more else None)


# On a cluster a blocked reader looks at one partition at a time, for this long.
TURN_MS = 20


class TopicRead(NamedTuple):
    """What was taken from partitions, where each ended, and when the next message is due.

    ``bounds`` are the first and last offset of partitions, if they were asked for.
    """

    messages: list[TopicMessage]
    news: list[tuple[StreamHandle, int]]
    due_ms: int
    bounds: dict[int, tuple[int, int]]

    @property
    def first(self) -> dict[int, int]:
        """The first offset of each partition."""
        return {partition: first for partition, (first, _) in sorted(self.bounds.items())}

    @property
    def last(self) -> dict[int, int]:
        """The last offset of each partition."""
        return {partition: last for partition, (_, last) in sorted(self.bounds.items())}


def read(
    group: TopicGroupHandle,
    count: int,
    block_ms: Duration | float | None,
    ack_ms: Duration | None,
    expire_ms: Duration | None,
    max_bytes: int | None = None,
    *,
    with_info: bool = False,
) -> Operation[TopicRead]:
    """Take up to ``count`` messages from all partitions, beginning with another one each time.

    ``with_info`` returns the bounds of each partition, too, as its reply gave them. Partitions that
    the read did not need are asked for their bounds at the end.
    """
    check_count(count)
    terms = Terms.of(ack_ms, expire_ms, max_bytes)
    grouping.check_terms(group.options, count, terms.ack_ms)
    patience = check_block(block_ms) if count else 0
    taken = yield from _read_until(group, count, patience, terms, with_info=with_info)
    # What this read took must reach its caller.
    with contextlib.suppress(StoreError):
        if with_info:
            yield from _complete_bounds((yield from group.open()), taken.bounds)
    return taken


def _complete_bounds(
    members: list[GroupHandle], bounds: dict[int, tuple[int, int]]
) -> Operation[None]:
    """Add the bounds of partitions that are not known yet, by one round trip for all."""
    unread = [partition for partition in range(len(members)) if partition not in bounds]
    extents = yield from together([extent(members[n].stream.name) for n in unread])
    bounds |= {n: (one.first, one.last) for n, one in zip(unread, extents, strict=True)}


def _read_until(
    group: TopicGroupHandle, count: int, patience: float, terms: Terms, *, with_info: bool
) -> Operation[TopicRead]:
    deadline = (yield Clock()) + patience
    woken: list[Any] | None = None
    while True:
        found = yield from _read_partitions(group, count, terms, with_info)
        left, news = deadline - (yield Clock()), found.news
        if found.messages or left <= 0:
            return found
        if woken:
            yield from _complete(news, woken)
        wait_ms = min(left, grouping.WAIT_SLICE_MS, terms.ack_ms or left)
        if found.due_ms >= 0:
            wait_ms = min(wait_ms, found.due_ms)
        if not group.one_server:
            # Streams in different slots cannot be waited for together: take turns.
            news, wait_ms = news[:1], min(wait_ms, TURN_MS)
        woken = yield _wait_for(news, max(1, int(wait_ms)))


def _complete(news: list[tuple[StreamHandle, int]], woken: list[Any]) -> Operation[None]:
    """Complete writes that stopped half-way: they wake readers that then find nothing."""
    ends = {tail_key(stream.key): (stream, last) for stream, last in news}
    for tail, entries in woken:
        stream, last = ends.get(tail.decode(), (None, 0))
        if stream is not None and int(entries[0][0][2:]) > last:
            yield reading.complete(stream.key)


def _read_partitions(
    group: TopicGroupHandle, count: int, terms: Terms, with_info: bool
) -> Operation[TopicRead]:
    members = yield from group.open()
    group.turn = (group.turn + 1) % len(members)
    messages: list[TopicMessage] = []
    news: list[tuple[StreamHandle, int]] = []
    bounds: dict[int, tuple[int, int]] = {}
    due_ms = -1
    room = terms.max_bytes
    for partition in (*range(group.turn, len(members)), *range(group.turn)):
        left = count - len(messages) if room > 0 else 0
        try:
            taken = yield from grouping.read_now(
                members[partition], left, terms._replace(max_bytes=room), with_info=with_info
            )
        except HeadwaterError as error:
            if messages:
                # What this read took in other partitions must reach its caller.
                return TopicRead(messages, news, -1, bounds)
            error.partition = partition
            raise
        messages += in_partition(partition, taken.messages)
        room -= bytes_of(taken.messages)
        news.append((members[partition].stream, taken.last))
        if with_info:
            bounds[partition] = taken.first, taken.last
        if taken.due_ms >= 0:
            due_ms = taken.due_ms if due_ms < 0 else min(due_ms, taken.due_ms)
        members[partition].begun = True
        # The first read reaches every partition: from then on the group exists in all of them.
        if (len(messages) >= count or room <= 0) and all(one.begun for one in members):
            break
    return TopicRead(messages, news, due_ms, bounds)


def _wait_for(news: list[tuple[StreamHandle, int]], ms: int) -> Wait:
    keys = [tail_key(stream.key) for stream, _ in news]
    ids = [f"0-{last}" for _, last in news]
    return Wait(keys[0], ("XREAD", "COUNT", 1, "BLOCK", ms, "STREAMS", *keys, *ids), ms)


def await_news(ends: list[tuple[StreamHandle, int]], ms: int) -> Operation[list[str]]:
    """Wait until a stream goes beyond its end; returns the names of those that do."""
    tails = {tail.decode() for tail, _ in (yield _wait_for(ends, ms)) or ()}
    return [stream.name for stream, _ in ends if tail_key(stream.key) in tails]
