"""Compaction: keep the last message of every tag, at its offset, and remove those before it.

The rule is here, once. ``compact`` follows it in one process, which walks the log newest first and
remembers every tag; a caller that finds the last messages by other means, for a log with more tags
than fit in memory, calls ``survey`` and then ``rewrite`` for parts of the log.

Only sealed nodes are rewritten, each in place and by an atomic call that does nothing when the node
was replaced or evicted since it was read. So any number of clients may compact, write, read and
evict at once, and one that stops half-way leaves a log that is only less compact.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import pyarrow as pa

from headwater.inputs import Duration
from headwater.log import arrow_compute as pc
from headwater.log import node
from headwater.log.fetching import fetch
from headwater.log.handles import StreamHandle
from headwater.log.limits import MAX_OFFSET, NODE_MESSAGES, check_ms
from headwater.log.node import HEADERS
from headwater.log.reading import complete, info
from headwater.log.replies import NodeFacts, NodesReply, record
from headwater.log.runs import SCHEMA, SCHEMA_WITH_HEADERS
from headwater.log.types import GroupInfo
from headwater.log.writing import seal
from headwater.store.call import Argument, Call, Operation
from headwater.store.faults import Refusal

MARKER_MS = 24 * 3600 * 1000
# How many nodes one call lists, and how many one call replaces at most.
_PAGE = 64
_MOST_NODES = 1024

# Returns which rows of a batch stay; batches come newest first, and have the columns of a scan.
Choice = Callable[[pa.RecordBatch], pa.BooleanArray]


class Survey(NamedTuple):
    """The scope of a compaction: the stream, how far it looks, which markers may be removed.

    ``last`` is the last offset that it looks at, ``floor`` the lowest that a reader still needs.
    """

    created: bytes
    first: int
    last: int
    floor: int
    marker_time_ms: int

    def spent(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return which messages, if they are the last of their tags, are markers that may go too.

        A message with an empty value marks its tag as deleted. It is removed once it is old enough
        and every registered reader is past it, and only when nothing older of its tag is left.
        """
        times = batch.column("time").cast(pa.int64())
        old = pc.less_equal(times, self.marker_time_ms)
        passed = pc.less(batch.column("offset"), self.floor)
        return pc.and_(_is_marker(batch), pc.and_(old, passed))


class Rewritten(NamedTuple):
    """How many messages were removed, and whether a node was left to another client."""

    removed: int
    lost_race: bool


def survey(stream: StreamHandle, marker_ms: Duration, *, sealing: bool = True) -> Operation[Survey]:
    """Seal everything that was written, and return how far a compaction may go.

    Without ``sealing`` nothing is changed, and the survey goes to the end of the stream.
    """
    marker_ms = check_ms(marker_ms, "marker_ms")
    # Asked first: when the stream is deleted and made again after this, no node is replaced.
    created = NodesReply.of((yield _nodes(stream.key, 0))).created
    if sealing:
        yield complete(stream.key)
        yield from seal(stream.key, everything=True)
    facts = yield from info(stream)
    floor = min([*facts.readers.values(), MAX_OFFSET])
    for group in facts.groups:
        # A group that was removed meanwhile needs nothing.
        with suppress(Refusal):
            reply = yield Call("hw_group_info", stream.key, (group,), read_only=True)
            floor = min(floor, record(GroupInfo, reply, name=group).ack_offset)
    last = facts.sealed if sealing else facts.last
    return Survey(created, facts.first, last, floor, facts.last_time_ms - marker_ms)


def compact(stream: StreamHandle, marker_ms: Duration) -> Operation[int]:
    """Keep the last message of every tag; returns how many messages went.

    Takes memory for one set of all tags; the log may be larger.
    """
    seen: set[str] = set()
    markers: list[int] = []
    rule = yield from survey(stream, marker_ms)

    def last_of_tags(batch: pa.RecordBatch) -> pa.BooleanArray:
        stays = []
        for tag in reversed(batch.column("tag").to_pylist()):
            stays.append(tag not in seen)
            seen.add(tag)
        mask = pa.array(reversed(stays), pa.bool_())
        spent = batch.column("offset").filter(pc.and_(mask, rule.spent(batch)))
        markers.extend(spent.to_pylist())
        return mask

    done = yield from rewrite(stream, rule, last_of_tags, rule.first, rule.last)
    if done.lost_race or not markers:
        return done.removed
    gone = yield from remove_markers(stream, rule, markers, rule.first, rule.last)
    return done.removed + gone.removed


class AmongOffsets:
    """Tells which rows of a node have one of many offsets.

    Each node is compared with the offsets in its own range alone: Arrow builds a table of what it
    compares with, and to build one of a million offsets for each of a thousand nodes takes minutes.
    """

    def __init__(self, offsets: Iterable[int]) -> None:
        self._sorted = sorted(offsets)

    def __call__(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return for each row of a node whether its offset is among them."""
        column = batch.column("offset")
        if not len(column):
            return pa.array([], pa.bool_())
        low = bisect_left(self._sorted, column[0].as_py())
        high = bisect_right(self._sorted, column[-1].as_py())
        return pc.is_in(column, value_set=pa.array(self._sorted[low:high], pa.int64()))


def remove_markers(
    stream: StreamHandle, rule: Survey, markers: Sequence[int], first: int, last: int
) -> Operation[Rewritten]:
    """Remove spent markers from the nodes that are in first..last.

    To be called when nothing older of their tags is left, anywhere, and no race was lost. If they
    were removed together with the rest, a client that stopped half-way would leave a deleted tag
    without its marker, and the tag would be back.
    """
    spent = AmongOffsets(markers)

    def others(batch: pa.RecordBatch) -> pa.BooleanArray:
        return pc.invert(spent(batch))

    return (yield from rewrite(stream, rule, others, first, last, only=set(markers)))


def rewrite(
    stream: StreamHandle,
    rule: Survey,
    choose: Choice,
    first: int,
    last: int,
    *,
    only: set[int] | None = None,
) -> Operation[Rewritten]:
    """Rewrite the nodes that are in first..last, newest first, with what stays.

    Neighbours that shrank share a node. A node that reaches below ``first`` is left, because
    another client made it: nodes never span the borders between parts otherwise. Given ``only``,
    nodes that hold none of those offsets are skipped. Ends when the stream was created again since.
    """
    pile = _Pile(stream.key, rule.created)
    below = last
    while True:
        reply = NodesReply.of((yield _nodes(stream.key, below)))
        start = reply.first
        nodes = [old for old in reply.nodes if old.last >= max(first, start)]
        if reply.created != rule.created:
            return Rewritten(pile.removed, True)
        for old in nodes:
            below = old.base - 1
            if max(old.base, start) < first:
                pile.lost_race = True
                break
            if only is not None and only.isdisjoint(range(old.base, old.last + 1)):
                yield from pile.flush(start)
                continue
            batch = yield from rows_of(stream, max(old.base, start), old.last)
            kept = batch.filter(choose(batch)) if batch.num_rows else batch
            full = pile.rows + kept.num_rows > NODE_MESSAGES or pile.nodes == _MOST_NODES
            if full or not pile.borders(old):
                yield from pile.flush(start)
            pile.add(old, kept)
        if len(nodes) < _PAGE:
            yield from pile.flush(start)
            return Rewritten(pile.removed, pile.lost_race)


def note_compacted(stream: StreamHandle, created: bytes, last: int) -> Operation[None]:
    """Record for housekeepers that a compaction has seen everything up to an offset."""
    yield Call("hw_stream_compacted", stream.key, (created, last), repeatable=True)


def rows_of(stream: StreamHandle, first: int, last: int) -> Operation[pa.RecordBatch]:
    """Return the messages of first..last: the columns of a scan and, if any, stored headers."""
    runs = yield from fetch(stream, [(first, last)])
    headers = any(run.headed for run in runs)
    parts: list[Any] = [run.cut(first, last).to_arrow(headers=headers) for run in runs]
    return pa.concat_batches(parts) if parts else pa.RecordBatch.from_pylist([], SCHEMA)


def concat_rows(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Join what rows_of returned; messages of a part without headers have none."""
    headed = [SCHEMA_WITH_HEADERS.names == part.schema.names for part in parts]
    if any(headed) and not all(headed):
        parts = [
            part
            if has
            else part.append_column(HEADERS, pa.repeat(pa.scalar(b"", HEADERS.type), part.num_rows))
            for part, has in zip(parts, headed, strict=True)
        ]
    return pa.concat_batches(parts)


def node_words(batch: pa.RecordBatch, base: int, last: int) -> tuple[Argument, ...]:
    """Return the arguments for a rewritten node of base..last: messages, first time, bytes."""
    if not batch.num_rows:
        return (0, 0, b"")
    sparse = batch.num_rows != last - base + 1
    packed = node.pack(node.of_rows(batch, offsets=sparse), sealed=True)
    return (batch.num_rows, packed.first_time or 0, packed.blob)


class _Pile:
    """Neighbouring nodes that shrank, gathered newest first until they fill one new node."""

    def __init__(self, key: str, created: bytes) -> None:
        self._key = key
        self._created = created
        self._old: list[NodeFacts] = []
        self._kept: list[pa.RecordBatch] = []
        self.rows = 0
        self.removed = 0
        self.lost_race = False

    @property
    def nodes(self) -> int:
        """How many nodes are gathered."""
        return len(self._old)

    def borders(self, old: NodeFacts) -> bool:
        """Return whether a node can be added; one node over lost offsets would hide the loss."""
        return not self._old or self._old[-1].base == old.last + 1

    def add(self, old: NodeFacts, kept: pa.RecordBatch) -> None:
        self._old.append(old)
        self._kept.append(kept)
        self.rows += kept.num_rows

    def flush(self, first: int) -> Operation[None]:
        """Replace the nodes of the pile by one."""
        old, kept, rows = self._old[::-1], self._kept[::-1], self.rows
        self._old, self._kept, self.rows = [], [], 0
        before = sum(each.messages for each in old)
        if not old or (len(old) == 1 and rows == before):
            return
        base, last = max(old[0].base, first), old[-1].last
        # Rows below `first` were evicted already; they do not count as compacted.
        before -= max(first - old[0].base, 0)
        words = node_words(concat_rows(kept), base, last)
        args: list[Argument] = [self._created, base, *words]
        for each in old:
            args += [each.base, each.last, each.version]
        if (yield Call("hw_stream_replace", self._key, tuple(args), repeatable=True)):
            self.removed += before - rows
        else:
            self.lost_race = True


def _nodes(key: str, below: int) -> Call:
    return Call("hw_stream_nodes", key, (below, _PAGE), read_only=True)


def _is_marker(batch: pa.RecordBatch) -> pa.BooleanArray:
    return pc.equal(pc.binary_length(batch.column("value")), 0)
