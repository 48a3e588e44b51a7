"""Reading a stream: by offset, blocking, as Arrow, by time; and its info."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa

from headwater.inputs import Duration
from headwater.log import counts, history
from headwater.log.blocking import arrivals, woken_messages
from headwater.log.extents import extent
from headwater.log.fetching import FetchedPart, fetch, fetch_part, note_missing, refuse_missing
from headwater.log.handles import StreamHandle
from headwater.log.limits import (
    MAX_OFFSET,
    REPLY_BYTES,
    check_block,
    check_count,
    check_name,
    check_offset,
    reply_limits,
    to_ms,
)
from headwater.log.replies import OffsetAtReply, ReadReply, SentNode, record
from headwater.log.runs import (
    NOTHING_HELD,
    Run,
    check_node,
    missing,
    open_runs,
)
from headwater.log.types import Message, Passage, StreamInfo
from headwater.store.call import Call, Clock, Operation

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
    stream.seen, lost = history.go_on(seen, stream.name, at, upto, part.created, part.history, last)
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
    return Call("hw_stream_read", stream.key, args, read_only=True, messages=counts.read)


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
        first, last, more = OffsetAtReply(*(yield call))
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
