"""Reading a stream: by offset, blocking, as Arrow, by time; its info and its extent."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa

from headwater.errors import HeadwaterError, MissingMessages
from headwater.kernel.inputs import Duration
from headwater.log import handles, node
from headwater.log.handles import StreamHandle
from headwater.log.keys import (
    MAX_OFFSET,
    NODE_MESSAGES,
    REPLY_BYTES,
    check_block,
    check_count,
    check_name,
    check_offset,
    index_key,
    nodes_key,
    reply_limits,
    stream_key,
    stream_name,
    tail_key,
    to_ms,
    topic_key,
)
from headwater.log.node import (
    NOTHING_HELD,
    Held,
    PackedRun,
    Run,
    check_node,
    is_elsewhere,
    is_partial,
    missing,
    open_entries,
    open_node,
    open_runs,
)
from headwater.log.replies import (
    ClaimedRange,
    GroupReadReply,
    IndexedNode,
    PublishReply,
    ReadReply,
    Reply,
    SentNode,
    record,
)
from headwater.log.types import Message, Passage, StreamInfo
from headwater.store.call import Argument, Call, Clock, Look, Operation, Wait

# Where streams begin and end, and where they may be cut, for planners of large reads.
#
# Each is an operation of one call; ``together`` runs those of all partitions of a topic in one
# round trip.


class Extent(NamedTuple):
    """The offsets that a stream holds, and ``created``, which no later stream of its name has.

    A stream that was never written holds 1..0 and was created 0. ``history`` shows what it has lost
    (see log/handles.py); None when it is not known.
    """

    first: int
    last: int
    created: int
    history: bytes | None = b""


def extent(stream: str) -> Operation[Extent]:
    """Return the extent of a stream."""
    reply = yield Call("hw_stream_read", stream_key(stream), (0, ""), read_only=True)
    read = ReadReply(*reply)
    return Extent(read.first, read.last, int(read.created), read.history)


def borders(stream: str, start: int, stop: int, nodes: int, least: int) -> Operation[list[int]]:
    """Return the offsets after which start..stop-1 may be cut into parts: where nodes end.

    A part has up to ``nodes`` nodes; there are ``least`` parts or a multiple of it, so that as many
    readers as that finish together.
    """
    args = (start, stop - 1, nodes, least)
    found: list[int]
    _, _, _, *found = yield Call("hw_stream_borders", stream_key(stream), args, read_only=True)
    return found


def partitions_of(topic: str) -> Operation[int]:
    """Return how many partitions a topic has, without creating it; 0 for no such topic."""
    found: int = yield Call("hw_topic_partitions", topic_key(topic), read_only=True)
    return found


# How many messages a request of the log moves, counted in its reply, for instruments.
#
# A function here is called only when an instrument is installed; see ``Call.messages``.


def count_read(call: Call, reply: Reply) -> int:
    """Count the offsets asked for that a reply of hw_stream_read covers."""
    found = ReadReply(*reply)
    ranges = zip(call.args[2::2], call.args[3::2], strict=True)
    return sum(
        max(0, min(int(last), found.covered) - max(int(first), found.first) + 1)
        for first, last in ranges
    )


def count_looked_at(_: Look, found: Any) -> int:
    """Count the messages of the next node, if there is one."""
    member = found[0] if found else []
    return IndexedNode.of(member[0]).messages if member else 0


def count_arrived(_: Wait, reply: Any) -> int:
    """Count the messages in the entries of a stream's tail that woke a reader.

    A bare entry stands for a node, which is read by another request.
    """
    entries = [fields for _, fields in reply[0][1]] if reply else []
    return sum(
        int(fields[1]) if fields[0] == b"n" else 1 for fields in entries if not is_elsewhere(fields)
    )


def count_published(_: Call, reply: Reply) -> int:
    """Count the messages of a publish with the call that finishes it."""
    found = PublishReply(*reply)
    return found.last - found.first + 1 if found.done and not found.repeat else 0


def count_delivered(_: Call, reply: Reply) -> int:
    """Count the messages that a group delivered, at once or into a box."""
    found = GroupReadReply.of(reply)
    return _in_ranges(found.claims) + (_in_box(found.boxed) if found.boxed else 0)


def count_unboxed(_: Wait, reply: Any) -> int:
    """Count the messages of a claim that woke a blocked member."""
    return _in_box(reply[1]) if reply and reply[1] != b"poke" else 0


def count_first(_: Call, reply: Reply) -> int:
    """Count the messages that a function says first: settled, evicted, buried, redriven."""
    return max(int(reply[0]), 0)


def count_failed(_: Call, reply: int) -> int:
    """Count the messages that hw_group_fail found pending."""
    return reply


def _in_box(text: bytes) -> int:
    return _in_ranges(ClaimedRange.all_in(text.partition(b"\n")[0]))


def _in_ranges(claims: Iterable[ClaimedRange]) -> int:
    return sum(claim.last - claim.first + 1 for claim in claims)


# The bytes of a stream's messages, from the server into runs.
#
# One reply holds at most 4 MiB, 64 MiB unpacked, and at least one node or entry. The node that was
# read last is cached, so that reading it in small parts fetches and opens it once.


# How many ranges are fetched by one call.
RANGES_PER_CALL = 500


class FetchedPart(NamedTuple):
    """What one reply brought: the bounds of the stream then, the last offset covered, the runs."""

    first: int
    last: int
    covered: int
    runs: list[Run]
    created: bytes
    history: bytes

    def missing(self, at: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges of at..end, as far as the reply goes, that the store has lost."""
        return missing(self.runs, max(at, self.first), min(end, self.covered))


def note_missing(key: str, created: bytes, ranges: Iterable[tuple[int, int]]) -> Operation[None]:
    """Note what the store has lost, for the info of the stream; it is no fault if that fails."""
    edges = [edge for one in ranges for edge in one]
    with contextlib.suppress(HeadwaterError):
        yield Call("hw_stream_missing", key, (created, *edges), repeatable=True)


def refuse_missing(key: str, created: bytes, ranges: list[tuple[int, int]]) -> Operation[None]:
    """Raise MissingMessages for the first of these ranges; nothing happens without any."""
    if ranges:
        yield from note_missing(key, created, ranges)
        raise MissingMessages(stream_name(key), *ranges[0])


def fetch_part(
    stream: StreamHandle, at: int, end: int, max_bytes: int | None = None
) -> Operation[FetchedPart]:
    """Return what is in at..end, as far as one reply goes; it may cover a node beyond the end.

    With ``max_bytes``, the reply ends when its messages have so many, unpacked.
    """
    held = stream.held
    if at == held.last + 1 and end - at < NODE_MESSAGES:
        part = yield from _next_node(stream, held)
        if part is not None:
            return part
    args = (reply_limits(max_bytes), held.name, at, end)
    call = Call("hw_stream_read", stream.key, args, read_only=True, messages=count_read)
    reply = ReadReply(*(yield call))
    runs, stream.held = open_runs(reply, held, stream.name)
    return FetchedPart(reply.first, reply.last, reply.covered, runs, reply.created, reply.history)


def _next_node(stream: StreamHandle, held: Held) -> Operation[FetchedPart | None]:
    """Look for the node after the one that was read last, where most readers continue.

    This takes the server half the time that the function takes. Only a node without holes counts:
    its messages never change, so it does not matter what happens between the three commands, as
    long as the last of them finds the same stream, and the node not evicted.
    """
    at = held.last + 1
    found = yield Look(
        stream.key,
        (
            ("ZRANGE", index_key(stream.key), at, "+inf", "BYSCORE", "LIMIT", 0, 1, "WITHSCORES"),
            ("HGET", nodes_key(stream.key), at),
            ("HMGET", stream.key, "first", "last", "created", "history"),
        ),
        messages=count_looked_at,
    )
    if not found or found[2][2] != held.created:
        return None
    member, blob, (first, last, created, history) = found
    history = history or b""
    first, last = int(first), int(last)
    if last < at:
        return FetchedPart(first, last, last, [], created, history)
    if first > at or not member or not blob:
        return None
    facts, end = IndexedNode.of(member[0]), int(member[1])
    if facts.base != at or facts.messages != end - at + 1:
        return None
    if not node.belongs(blob, at, end, facts.time, facts.version):
        # It was replaced between the commands, or it is damaged: the function will tell.
        return None
    sent = SentNode(at, end, facts.time, facts.version, blob)
    batch = open_node(sent, stream.name)
    if batch.num_rows != facts.messages or "offset" in batch.schema.names:
        return None
    stream.held = Held(created, at, end, facts.version, batch)
    run = PackedRun(at, end, facts.time, batch)
    return FetchedPart(first, last, end, [run], created, history)


def _fetch_ranges(
    stream: StreamHandle, ranges: list[tuple[int, int]], whole: bool
) -> Operation[tuple[list[Run], list[tuple[int, int]]]]:
    """Return runs of ranges, which ascend, by one call, and what did not fit into its reply."""
    held = stream.held
    some = ranges[:RANGES_PER_CALL]
    edges = [edge for one in some for edge in one]
    args: tuple[Argument, ...] = (reply_limits(), held.name, *edges)
    call = Call("hw_stream_read", stream.key, args, read_only=True, messages=count_read)
    reply = ReadReply(*(yield call))
    opened, stream.held = open_runs(reply, held, stream.name)
    if whole:
        spans = [(max(first, reply.first), min(last, reply.covered)) for first, last in some]
        lost = [gap for span in spans for gap in missing(opened, *span)]
        yield from refuse_missing(stream.key, reply.created, lost)
    runs = [
        run.cut(first, last)
        for first, last in some
        for run in opened
        if run.base <= last and run.last >= first
    ]
    if reply.covered >= min(some[-1][1], reply.last):
        return runs, ranges[len(some) :]
    # The rest of a range that was cut begins after what was covered.
    left = [one for one in some if one[1] > reply.covered]
    left[0] = max(left[0][0], reply.covered + 1), left[0][1]
    return runs, left + ranges[len(some) :]


def fetch(
    stream: StreamHandle, ranges: Iterable[tuple[int, int]], *, whole: bool = True
) -> Operation[list[Run]]:
    """Return the runs of the given ranges, and nothing beyond; several calls when they are large.

    A node that holds parts of several ranges becomes a run for each of them. Raises MissingMessages
    for offsets that the store has lost; unless ``whole``, no run has them, as if they were evicted.
    """
    runs: list[Run] = []
    rest = sorted(ranges)
    while len(rest) > 1:
        found, rest = yield from _fetch_ranges(stream, rest, whole)
        runs += found
    for first, last in rest:
        at = first
        while at <= last:
            part = yield from fetch_part(stream, at, last)
            if whole:
                lost = part.missing(at, last)
                yield from refuse_missing(stream.key, part.created, lost)
            runs += [run.cut(at, last) for run in part.runs if run.base <= last and run.last >= at]
            if part.covered < at or part.covered >= part.last:
                break
            at = part.covered + 1
    return runs


# A blocked call returns this often, so that a dead connection is noticed.
WAIT_SLICE_MS = 5000


def arrivals(
    stream: StreamHandle, offset: int, count: int, deadline: float
) -> Operation[list[Any]]:
    """Wait until the tail holds an entry at or after an offset; returns [] when time is up."""
    tail = tail_key(stream.key)
    most = min(count, 1000)
    while True:
        left = deadline - (yield Clock())
        if left <= 0:
            return []
        slice_ms = max(1, int(min(left, WAIT_SLICE_MS)))
        command = ("XREAD", "COUNT", most, "BLOCK", slice_ms, "STREAMS", tail, f"0-{offset - 1}")
        if reply := (yield Wait(tail, command, slice_ms, messages=count_arrived)):
            entries: list[Any] = reply[0][1]
            return entries


def woken_messages(
    stream: StreamHandle, entries: list[Any], offset: int, count: int
) -> list[Message | None]:
    """Return what woke a blocked reader, if it begins with the very offset it waits for."""
    if any(is_elsewhere(fields) for _, fields in entries) or is_partial(entries[-1][1]):
        return []
    runs = open_entries(entries, stream.name)
    if not runs or runs[0].base > offset:
        return []
    rows = [m for run in runs for m in run.cut(offset, offset + count - 1).messages()]
    dense = [m.offset for m in rows] == list(range(offset, offset + len(rows)))
    if not dense:
        return []
    if rows:
        stream.seen = stream.seen._replace(woken=max(stream.seen.woken, rows[-1].offset))
    return list(rows)


# So many names of groups are in one reply; stated in the Lua.
LISTED_GROUPS = 1000

Piece = TypeVar("Piece")


def read(
    stream: StreamHandle,
    offset: int,
    count: int,
    block_ms: Duration | float | None,
    *,
    with_info: bool = False,
) -> Operation[tuple[list[Message | None], int, int]]:
    """Read ``count`` messages from ``offset`` on; one place per offset, None where it is gone.

    Returns them, and, ``with_info``, the bounds of the stream as the same reply gave them.
    """
    check_offset(offset)
    check_count(count)
    patience = check_block(block_ms)
    if with_info and not count:
        bounds = yield from extent(stream.name)
        return [], bounds.first, bounds.last
    found = yield from _read_now(stream, offset, count)
    if found[0] or not count or not patience:
        return found
    deadline = (yield Clock()) + patience
    while entries := (yield from arrivals(stream, offset, count, deadline)):
        # The entry that woke a reader does not contain the bounds.
        woken = [] if with_info else woken_messages(stream, entries, offset, count)
        found = (woken, 0, 0) if woken else (yield from _read_now(stream, offset, count))
        if found[0]:
            break
        yield complete(stream.key)
    return found


def read_from(
    stream: StreamHandle,
    offset: int,
    count: int,
    block_ms: Duration | float | None,
    *,
    looks: bool = False,
    max_bytes: int | None = None,
    whole: bool = True,
) -> Operation[Passage]:
    """Read on from ``offset``: up to ``count`` messages, where to continue, and what was evicted.

    Offsets that compaction emptied are skipped; only evicted ones are a gap. With ``looks``, a
    blocked read takes nothing from what woke it: then the history of all that it returns is known.
    It ends at the first node with which the messages have ``max_bytes``. Raises MissingMessages for
    what the store has lost; unless ``whole``, that is a gap, too.
    """
    check_offset(offset)
    check_count(count)
    patience = check_block(block_ms)
    passage = yield from _pass_over(stream, offset, count, max_bytes, whole)
    if passage.next > offset or not count or not patience:
        return passage
    deadline = (yield Clock()) + patience
    most = count if max_bytes is None else 1
    while entries := (yield from arrivals(stream, offset, most, deadline)):
        woken = [] if looks else woken_messages(stream, entries, offset, count)
        if rows := [m for m in woken if m is not None]:
            return Passage(rows, rows[-1].offset + 1, None, rows[-1].offset)
        passage = yield from _pass_over(stream, offset, count, max_bytes, whole)
        if passage.next > offset:
            break
        yield complete(stream.key)
    return passage


def complete(key: str) -> Call:
    """Complete or drop a write that stopped half-way: the tail goes beyond the end."""
    return Call("hw_stream_complete", key, repeatable=True)


def _look(
    stream: StreamHandle, at: int, end: int, max_bytes: int | None = None, whole: bool = True
) -> Operation[FetchedPart]:
    """Fetch what a reader needs next. Raises LostFuture when it is beyond what is there.

    Raises MissingMessages for what the store has lost; unless ``whole``, that is only noted.
    """
    # Read before the call: other readers of this handle may be further when the reply arrives.
    seen = stream.seen
    part = yield from fetch_part(stream, at, end, max_bytes)
    last = part.last
    if last < max(seen.upto, seen.woken) and part.created == seen.created:
        # Unless that is a write whose call stopped half-way.
        last = yield complete(stream.key)
    upto = min(part.covered, end, last)
    stream.seen, lost = handles.go_on(seen, stream.name, at, upto, part.created, part.history, last)
    if lost:
        raise lost
    if gone := part.missing(at, end):
        if whole:
            yield from refuse_missing(stream.key, part.created, gone)
        yield from note_missing(stream.key, part.created, gone)
    return part


class FoundRuns(NamedTuple):
    """What a read found: runs in order, one place for each offset, the bounds of the stream then.

    Places that no run has are of messages that are gone.
    """

    runs: list[Run]
    places: int
    first: int
    last: int


def read_runs(
    stream: StreamHandle, offset: int, count: int, *, max_bytes: int | None = None
) -> Operation[FoundRuns]:
    """Read ``count`` messages from ``offset`` on as they are stored, without making objects.

    With ``max_bytes``, those of one reply that ends there are enough: large messages would take any
    amount of memory.
    """
    check_offset(offset)
    check_count(count)
    found: list[Run] = []
    at, end = offset, offset + count - 1
    first = last = 0
    while at <= end:
        first, last, covered, runs, *_ = yield from _look(stream, at, end, max_bytes)
        at = max(at, min(first, end + 1, last + 1))
        covered = min(covered, end)
        found += [run.cut(at, covered) for run in runs if run.last >= at]
        at = max(at, covered + 1)
        if at > last or covered < at - 1 or (found and max_bytes):
            break
    return FoundRuns(found, at - offset, first, last)


def _read_now(
    stream: StreamHandle, offset: int, count: int
) -> Operation[tuple[list[Message | None], int, int]]:
    found = yield from read_runs(stream, offset, count)
    out: list[Message | None] = []
    for run in found.runs:
        _place(out, run, offset)
    out += [None] * (found.places - len(out))
    return out, found.first, found.last


def _place(out: list[Message | None], run: Run, offset: int) -> None:
    """Put a run's messages at their places; what is gone stays None."""
    rows = run.messages()
    out += [None] * (run.base - offset - len(out))
    if len(rows) == run.last - run.base + 1:
        out += rows
        return
    for message in rows:
        out += [None] * (message.offset - offset - len(out))
        out.append(message)


def _pass_over(
    stream: StreamHandle, offset: int, count: int, max_bytes: int | None, whole: bool
) -> Operation[Passage]:
    """Collect up to ``count`` messages over any number of holes, at most one full reply.

    Unless ``whole``, it ends before what the store has lost, or has it for a gap.
    """
    messages: list[Message] = []
    at, gap, span = offset, None, count
    while True:
        end = min(at + span - 1, MAX_OFFSET)
        part = yield from _look(stream, at, end, max_bytes, whole)
        first, last, covered, runs, *_ = part
        covered = min(covered, end)
        if at < first:
            if at > (gap[1] + 1 if gap else offset):
                # It was evicted during this read: the next read reports the gap.
                break
            gap, at = (offset, first - 1), first
        lost = part.missing(at, covered)
        for low, high in lost:
            if low > (gap[1] + 1 if gap else offset):
                # The next read reports it.
                covered = low - 1
                break
            gap, at = (offset, high), high + 1
        for run in runs:
            if run.last >= at and run.base <= covered:
                messages += run.cut(at, covered).messages()
        at = max(at, covered + 1)
        if at > last or len(messages) >= count or lost or (messages and covered < end):
            break
        # Where there are holes there are often many: look further ahead.
        span *= 4
    if len(messages) > count:
        del messages[count:]
        at = messages[-1].offset + 1
    return Passage(messages, at, gap, last)


class UnopenedNode(NamedTuple):
    """A node as the store keeps it: checked, not opened.

    ``base`` is its first offset, ``time`` that of its messages when they have none of their own.
    """

    base: int
    time: int
    blob: bytes


class Scanned(NamedTuple, Generic[Piece]):
    """What one reply of a scan holds, in order of offset, and where to continue (0: at the end).

    ``first``, ``last`` and ``created`` are the bounds of the stream, and which stream it was.
    ``missing`` are the ranges that the store has lost.
    """

    pieces: list[Piece]
    next: int
    first: int
    last: int
    created: int
    missing: list[tuple[int, int]]


def scan_part(
    stream: StreamHandle,
    at: int,
    stop: int,
    *,
    headers: bool = False,
    most: int = REPLY_BYTES,
    max_bytes: int | None = None,
    whole: bool = True,
) -> Operation[Scanned[pa.RecordBatch]]:
    """Return the record batches from ``at`` on that one reply holds; evicted offsets are passed.

    With ``headers``, they have a column of headers as they are stored. A reply has about ``most``
    bytes, ``max_bytes`` unpacked, and one node at least. Raises MissingMessages for what the store
    has lost; unless ``whole``, it is passed.
    """
    held = stream.held
    limits = reply_limits(max_bytes, most)
    reply = ReadReply(*(yield _part(stream, held.name, at, stop, limits)))
    runs, stream.held = open_runs(reply, held, stream.name)
    start = max(at, reply.first)
    lost = missing(runs, start, min(stop - 1, reply.covered))
    if whole:
        yield from refuse_missing(stream.key, reply.created, lost)
    batches = [batch for _, batch in _cut(runs, start, stop, headers=headers)]
    return (yield from _scanned(stream, batches, at, stop, reply, lost))


def scan_unopened(
    stream: StreamHandle, at: int, stop: int
) -> Operation[Scanned[pa.RecordBatch | UnopenedNode]]:
    """Do as scan_part does, but not ``whole``; nodes that are all in the range stay unopened."""
    reply = ReadReply(*(yield _part(stream, "", at, stop, reply_limits())))
    start = max(at, reply.first)
    pieces: list[tuple[int, pa.RecordBatch | UnopenedNode]] = []
    to_cut: list[Any] = []
    nodes = list(SentNode.all_of(reply.nodes))
    for sent in nodes:
        if sent.base < start or sent.last >= stop or not sent.blob:
            to_cut += sent
        else:
            check_node(sent, stream.name)
            pieces.append((sent.base, UnopenedNode(sent.base, sent.time, sent.blob)))
    runs, _ = open_runs(reply._replace(nodes=to_cut), NOTHING_HELD, stream.name)
    pieces += _cut(runs, start, stop)
    pieces.sort(key=itemgetter(0))
    held: list[Run | SentNode] = sorted([*nodes, *runs], key=attrgetter("base"))
    lost = missing(held, start, min(stop - 1, reply.covered))
    found = [piece for _, piece in pieces]
    return (yield from _scanned(stream, found, at, stop, reply, lost))


def scan_range(start: int | None, stop: int | None) -> tuple[int, int]:
    """Accept the range of a scan; None is the first offset, and beyond the last."""
    return (
        1 if start is None else check_offset(start, "start"),
        MAX_OFFSET if stop is None else check_offset(stop, "stop"),
    )


def _part(stream: StreamHandle, held: str, at: int, stop: int, limits: str) -> Call:
    args = (limits, held, at, min(stop - 1, MAX_OFFSET))
    return Call("hw_stream_read", stream.key, args, read_only=True, messages=count_read)


def _cut(
    runs: Iterable[Run], start: int, stop: int, *, headers: bool = False
) -> list[tuple[int, pa.RecordBatch]]:
    """Return the rows of runs that are in the range, those of each run with its first offset."""
    found = [
        (run.base, run.cut(start, stop - 1).to_arrow(headers=headers))
        for run in runs
        if run.last >= start and run.base < stop
    ]
    return [(base, batch) for base, batch in found if batch.num_rows]


def _scanned(
    stream: StreamHandle,
    pieces: list[Piece],
    at: int,
    stop: int,
    reply: ReadReply,
    lost: list[tuple[int, int]],
) -> Operation[Scanned[Piece]]:
    if lost:
        yield from note_missing(stream.key, reply.created, lost)
    more = max(at, reply.first) <= reply.covered < min(reply.last, stop - 1)
    going_on = reply.covered + 1 if more else 0
    return Scanned(pieces, going_on, reply.first, reply.last, int(reply.created), lost)


def offset_at(stream: StreamHandle, time: int | dt.datetime) -> Operation[int]:
    """Return the offset of the first message at or after a time; last + 1 when there is none."""
    time_ms = to_ms(time)
    at, more = 1, 1
    while more:
        call = Call("hw_stream_offset_at", stream.key, (time_ms, at), read_only=True)
        first, last, more = yield call
        for run in (yield from fetch(stream, [(first, last)])):
            for message in run.cut(first, last).messages():
                if message.time_ms >= time_ms:
                    return message.offset
        at = last + 1
    return at


def newest_sequence(key: str, producer: str) -> Operation[int | None]:
    """Return the newest sequence of a producer that the stream remembers; None without any."""
    args = (check_name(producer, "producer"),)
    found: int = yield Call("hw_stream_sequence", key, args, read_only=True)
    return None if found < 0 else found


def info(stream: StreamHandle) -> Operation[StreamInfo]:
    """Return the state of a stream; one that was never written is empty."""
    reply = yield Call("hw_stream_info", stream.key, read_only=True)
    found = record(StreamInfo, reply, name=stream.name)
    if len(found.groups) < LISTED_GROUPS:
        return found
    groups = list(found.groups)
    while more := (yield Call("hw_stream_groups", stream.key, (len(groups),), read_only=True)):
        groups += [name.decode() for name in more]
    return replace(found, groups=tuple(groups))
