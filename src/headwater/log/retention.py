"""Keeping a stream within bounds: eviction, retention, compaction, cooling, housekeeping."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from headwater.errors import InvalidInput, UnknownGroup
from headwater.kernel import arrow_compute as pc
from headwater.kernel.declaring import Param, Spelling
from headwater.kernel.inputs import MAX_EXACT, MAX_MS, Duration, whole_ms
from headwater.log import dead_letters, node, reading, writing
from headwater.log.handles import GroupHandle, Start, StreamHandle, check_start
from headwater.log.keys import (
    DELETED,
    HOT_KEPT,
    MAX_OFFSET,
    NODE_MESSAGES,
    STREAMS,
    check_count,
    check_ms,
    check_name,
)
from headwater.log.node import HEADERS, SCHEMA, SCHEMA_WITH_HEADERS, PackedRun
from headwater.log.reading import complete, extent, fetch, info, offset_at
from headwater.log.replies import (
    EvictReply,
    HotReply,
    NodeFacts,
    NodesReply,
    record,
)
from headwater.log.types import GroupInfo, Retained, Retention
from headwater.log.writing import seal
from headwater.store.call import Argument, Call, Operation
from headwater.store.faults import Refusal, fault_of_one

# Keep the last message of every tag, at its offset, and remove those before it.
#
# The rule is here, once. ``compact`` follows it in one process, which walks the log newest first
# and remembers every tag; a caller that finds the last messages by other means, for a log with
# more tags than fit in memory, calls ``survey`` and then ``rewrite`` for parts of the log.
#
# Only sealed nodes are rewritten, each in place and by an atomic call that does nothing when the
# node was replaced or evicted since it was read. So any number of clients may compact, write, read
# and evict at once, and one that stops half-way leaves a log that is only less compact.


MARKER_MS = 24 * 3600 * 1000

EvictUpTo: TypeAlias = Annotated[
    int,
    Param(
        "The last offset to evict; -n evicts all but the newest n.",
        least=-MAX_EXACT,
        most=MAX_EXACT,
        called="up_to",
    ),
]
PastReaders: TypeAlias = Annotated[
    bool,
    Param("Whether to evict also what groups and registered readers still need.", word="WAIT"),
]
Force: TypeAlias = Annotated[bool, Param("Evict even what groups and readers still need.")]
MarkerMs: TypeAlias = Annotated[
    Duration,
    Param(
        "Milliseconds after which marks of deleted tags may be removed.",
        Spelling.MS,
        0,
        MAX_MS,
        word="MARKER",
    ),
]
Compacting: TypeAlias = Annotated[
    bool, Param("Whether housekeepers compact from now on.", word="OFF")
]

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
        marks = pc.equal(pc.binary_length(batch.column("value")), 0)
        return pc.and_(marks, pc.and_(old, passed))


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


PRODUCER_MS = 7 * 24 * 3600 * 1000
MEMBER_MS = 3600 * 1000

# A preview looks at this many times 256 nodes, which are about 10^8 messages.
_MOST_PREVIEWS = 400

# There were more readers than one call of hw_stream_evict asks for their positions.
ASK_AGAIN = 2


class RetentionPreview(NamedTuple):
    """What a policy would evict: ``first`` to ``limit`` of a stream that ends at ``last``.

    ``more``: there were more nodes than one preview reads, and it would evict more.
    """

    first: int
    last: int
    limit: int
    more: bool


def evict(stream: StreamHandle, n: int, past_readers: bool = True) -> Operation[int]:
    """Evict messages up to offset ``n``, or all but the newest ``-n``; returns how many.

    Stops before the slowest registered reader unless ``past_readers``.
    """
    if isinstance(n, bool) or not isinstance(n, int) or abs(n) > MAX_OFFSET:
        raise InvalidInput(f"evict takes an offset, or -n to keep the newest n, not {n!r}")
    if n == 0:
        return 0
    key = stream.key
    args: tuple[Argument, ...] = (n,) if past_readers else (n, 1)
    call = Call("hw_stream_evict", key, args, repeatable=n > 0, messages=reading.count_first)
    reply = EvictReply.of((yield call))
    gone = reply.gone
    while reply.more == ASK_AGAIN:
        reply = EvictReply.of((yield call))
        gone += reply.gone
    more, cut = reply.more, reply.cut
    # The first call has resolved -n; further ones only free what it left.
    while more:
        call = Call("hw_stream_evict", key, (1,), repeatable=True, messages=reading.count_first)
        rest = EvictReply.of((yield call))
        gone, more = gone + rest.gone, rest.more
    if cut:
        kept = yield from rows_of(stream, cut.stay, cut.last)
        words = node_words(kept, cut.stay, cut.last)
        args = (reply.created, cut.stay, *words, cut.base, cut.last, cut.version)
        if not (yield Call("hw_stream_replace", key, args, repeatable=True)):
            return gone + (yield from evict(stream, cut.stay - 1, past_readers))
        gone += cut.messages - kept.num_rows
    return gone


def retain(stream: StreamHandle, policy: Retention, force: bool) -> Operation[Retained]:
    """Set the retention policy and apply it."""
    return (yield from _retain(stream.key, ("set", int(force), *_words(policy)), int(force)))


def retained_in_all(parts: Collection[Retained]) -> Retained:
    """Return what retention did to all partitions: sums, and who holds up the most."""
    evicted, held = sum(part.evicted for part in parts), sum(part.held for part in parts)
    return Retained(evicted, held, max(parts, key=attrgetter("held")).held_by)


def _words(policy: Retention) -> list[Argument]:
    words: list[Argument] = []
    for name, limit in asdict(policy).items():
        words += [name, "" if limit is None else check_count(limit, name, MAX_OFFSET)]
    return words


def preview(
    key: str, policy: Retention, most_calls: int = _MOST_PREVIEWS
) -> Operation[RetentionPreview]:
    """Return how far a policy would evict now, if no reader held it up; changes nothing.

    A round trip for each 256 nodes that a limit of age or bytes would evict, 400 at most.
    """
    words = _words(policy)
    at = freed = 0
    for _ in range(most_calls):
        call = Call("hw_stream_retain_preview", key, (at, freed, *words), read_only=True)
        first, last, limit, at, freed = yield call
        if at < 0:
            break
    return RetentionPreview(first, last, limit, at >= 0)


def policy_of(
    max_count: int | None,
    max_age_ms: Duration | None,
    max_bytes: int | None,
    max_idle_ms: Duration | None,
) -> Retention:
    """Return a policy with its spans of time in milliseconds."""
    age_ms = None if max_age_ms is None else whole_ms(max_age_ms)
    idle_ms = None if max_idle_ms is None else whole_ms(max_idle_ms)
    return Retention(max_count, age_ms, max_bytes, idle_ms)


def apply_retention(key: str, force: bool = False) -> Operation[Retained]:
    """Apply the policy that is set."""
    return (yield from _retain(key, ("apply", int(force)), int(force)))


def _retain(key: str, args: tuple[Argument, ...], force: int) -> Operation[Retained]:
    evicted = 0
    while True:
        call = Call("hw_stream_retain", key, args, repeatable=True, messages=reading.count_first)
        gone, more, held, held_by = yield call
        evicted += gone
        if not more:
            return Retained(evicted, held, held_by.decode() or None)
        args = ("apply", force)


def set_reader(
    key: str, reader: str, offset: int | None, *, forward: bool = False
) -> Operation[None]:
    """Register the offset that a reader outside the log needs next; None forgets the reader.

    forward: unless it is further already, because another process of the same name registered that.
    """
    position: Argument = "" if offset is None else check_count(offset, "offset", MAX_OFFSET)
    args = (check_name(reader, "reader"), position, "1" if forward else "")
    yield Call("hw_stream_reader", key, args, repeatable=True)


def seek_reader(stream: StreamHandle, reader: str, position: Start) -> Operation[int]:
    """Set the position of a reader outside the log; returns the offset."""
    check_start(position)
    bounds = yield from extent(stream.name)
    if position == "first":
        offset = bounds.first
    elif position == "last":
        offset = bounds.last + 1
    elif isinstance(position, int):
        offset = position
    else:
        offset = yield from offset_at(stream, position)
    if offset > bounds.last + 1:
        raise InvalidInput(
            f"offset {offset} is beyond stream {stream.name!r}, which ends at {bounds.last}; "
            f"use an offset up to {bounds.last + 1}, 'first' or 'last'"
        )
    yield from set_reader(stream.key, reader, offset)
    return offset


def tidy(
    key: str, producer_ms: int = PRODUCER_MS, member_ms: int = MEMBER_MS
) -> Operation[tuple[int, int]]:
    """Forget producers and members that were silent for that long; returns how many of each."""
    producers = members = at = 0
    while True:
        args = (producer_ms, member_ms, max(at, 0))
        gone, silent, at = yield Call("hw_stream_tidy", key, args, repeatable=True)
        producers, members = producers + gone, members + silent
        if not gone and at < 0:
            return producers, members


def delete(stream: StreamHandle) -> Operation[bool]:
    """Remove a stream with its groups and readers, at once; returns whether it existed.

    The keys of many groups are freed in steps; those that a client leaves, housekeepers make.
    """
    existed, more = yield Call("hw_stream_delete", stream.key, repeatable=True)
    if more:
        yield Call("hw_registry_add", DELETED, (stream.name,), repeatable=True)
    yield Call("hw_registry_remove", STREAMS, (stream.name,), repeatable=True)
    stream.registered.discard(stream.name)
    if more:
        yield from free(stream)
    return bool(existed)


def free(stream: StreamHandle) -> Operation[None]:
    """Free what is left of a stream that was deleted; one of the same name is left alone."""
    while (yield Call("hw_stream_free", stream.key, repeatable=True)):
        pass
    yield Call("hw_registry_remove", DELETED, (stream.name,), repeatable=True)


# Nodes that were packed to be fast, packed again to be small.
#
# A large batch becomes a node as its writer packed it, with a codec that is fast both ways. That
# node is hot. Any client can make it cold: the same messages, compressed better, in the same
# place. Hot messages are limited in number, so that a log without a housekeeper stays small: a
# writer that finds too many packs smaller itself.


def cool(stream: StreamHandle, leave: int) -> Operation[int]:
    """Pack the hot nodes smaller, all but the newest ``leave`` messages; returns how many messages.

    Each node is replaced by an atomic call if it is still the one that was read; otherwise another
    client has done the same or better.
    """
    cooled = 0
    while True:
        call = Call("hw_stream_hot", stream.key, (leave, _PAGE), read_only=True)
        reply = HotReply.of((yield call))
        if not reply.nodes:
            return cooled
        for base, last, count, size, time, version in reply.nodes:
            if base < reply.first or not count:
                continue
            # Read without the handle's cache, which belongs to another reader.
            runs = yield from fetch(StreamHandle(stream.name, stream.registered), [(base, last)])
            if len(runs) != 1 or not isinstance(runs[0], PackedRun):
                continue
            packed = node.pack(runs[0].batch, sealed=True)
            if packed.rows == count and len(packed.blob) < size:
                words = (reply.created, base, count, time, packed.blob, base, last, version)
                done = yield Call("hw_stream_replace", stream.key, words, repeatable=True)
                cooled += count * done
        args = (reply.created, reply.mark, reply.nodes[-1].last)
        if not (yield Call("hw_stream_cooled", stream.key, args, repeatable=True)):
            return cooled


# Everything that a stream needs from time to time, done by any client.
#
# It finishes abandoned publishes, seals full nodes and makes hot ones cold, gives up what has
# expired, forgets producers and members that are gone, applies the retention policy and, where the
# stream asks for it, compacts. Each step is atomic and does nothing when there is nothing to do,
# so that any number of housekeepers may work at once.


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kept:
    """What housekeeping did to a stream, in messages, publishes, producers and members.

    ``published`` counts publishes that were begun and left, and are finished now. Of the messages,
    ``cooled`` were packed again, smaller; ``expired`` were dropped for good, ``buried`` went to
    dead letters. ``held`` stay beyond the retention policy because ``held_by`` still needs them;
    it is the ``idle_holder``, too, when nobody has seen it for a day.
    ``fault`` says what could not be done, and why.
    """

    stream: str
    published: int = 0
    sealed: int = 0
    cooled: int = 0
    expired: int = 0
    buried: int = 0
    producers: int = 0
    members: int = 0
    evicted: int = 0
    held: int = 0
    held_by: str | None = None
    idle_holder: str | None = None
    compacted: int = 0
    fault: str | None = None

    @property
    def changed(self) -> bool:
        """Whether anything was changed."""
        facts = asdict(self)
        for name in ("stream", "held", "held_by", "idle_holder", "fault"):
            del facts[name]
        return any(facts.values())


def keep(stream: StreamHandle, *, left_ms: int = writing.LEFT_MS) -> Operation[Kept]:
    """Do all upkeep of a stream; what cannot be done is reported in ``fault``, not raised.

    A step that fails keeps none of the others from being done. A publish without a step for
    ``left_ms`` was abandoned by its client, and is finished.
    """
    faults: dict[str, None] = {}

    def tried(step: Operation[T], without: T) -> Operation[T]:
        try:
            return (yield from step)
        except Exception as error:  # noqa: BLE001  whatever it is, the other steps can be done
            faults[fault_of_one(error)] = None
            return without

    expired = buried = 0
    retained, idle_holder = Retained(0, 0, None), None
    yield from tried(free(stream), None)
    published = yield from tried(writing.finish_left(stream, left_ms), 0)
    facts = yield from tried(info(stream), None)
    sealed = yield from tried(seal(stream.key, everything=False), 0)
    cooled = yield from tried(cool(stream, HOT_KEPT), 0)
    for name in facts.groups if facts else ():
        group = GroupHandle(stream, name, "housekeeper")
        dropped, dead = yield from tried(_give_up(group), (0, 0))
        expired, buried = expired + dropped, buried + dead
    producers, members = yield from tried(tidy(stream.key), (0, 0))
    if facts and facts.retention != Retention():
        retained = yield from tried(apply_retention(stream.key), retained)
        if retained.held and retained.held_by == facts.idle_holder:
            idle_holder = retained.held_by
    compacted = yield from tried(_compact_if_due(stream), 0)
    return Kept(
        stream.name,
        published=published,
        sealed=sealed,
        cooled=cooled,
        expired=expired,
        buried=buried,
        producers=producers,
        members=members,
        evicted=retained.evicted,
        held=retained.held,
        held_by=retained.held_by,
        idle_holder=idle_holder,
        compacted=compacted,
        fault="; ".join(faults) or None,
    )


def seal_all(stream: StreamHandle) -> Operation[int]:
    """Seal everything written, and pack all nodes as small as possible; returns how many sealed."""
    yield complete(stream.key)
    sealed = yield from seal(stream.key, everything=True)
    yield from cool(stream, 0)
    return sealed


def _give_up(group: GroupHandle) -> Operation[tuple[int, int]]:
    """Drop or bury what has expired; a group that was removed meanwhile has nothing."""
    try:
        return (yield from dead_letters.give_up(group))
    except UnknownGroup:
        return 0, 0


def auto_compact(stream: StreamHandle, on: bool, marker_ms: Duration) -> Operation[None]:
    """Ask housekeepers to compact a stream, or no longer."""
    wish: Argument = check_ms(marker_ms, "marker_ms") if on else ""
    yield Call("hw_stream_auto_compact", stream.key, (wish,), repeatable=True)


def _compact_if_due(stream: StreamHandle) -> Operation[int]:
    due = yield Call("hw_stream_compact_due", stream.key, read_only=True)
    if not due:
        return 0
    marker_ms, last, created = due
    removed = yield from compact(stream, marker_ms)
    yield from note_compacted(stream, created, last)
    return removed
