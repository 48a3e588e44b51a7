"""Inspecting a stream without a change: search, profile, ruler, lags, what compaction removes."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from headwater.errors import InvalidInput
from headwater.kernel import arrow_compute as pc
from headwater.kernel.headers import bytes_of, check_max_bytes, first_of
from headwater.kernel.inputs import check_int
from headwater.log import reading
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.keys import MAX_MS, MAX_OFFSET, MAX_READ, check_count, check_offset, stream_key
from headwater.log.node import message_of
from headwater.log.reading import extent, info, scan_part
from headwater.log.replies import rows
from headwater.log.types import Message, Searched, StreamInfo
from headwater.store.call import Call, Clock, Operation, YieldTurn
from headwater.store.faults import Refusal

# Searching a stream for messages by tag, text or a field of JSON, within a budget.
#
# A log has no index of what is in its messages: a search reads them, node by node, and stops when
# it has found enough or has used up what it may take. It then says where to continue.


# How many offsets are read at once; fewer when messages are large.
_PART_OFFSETS: Final = 10_000
_PART_BYTES: Final = 8 * 1024 * 1024
# How much is opened, and checked, before other tasks of an event loop run.
_REPLY_BYTES: Final = 128 * 1024
_UNPACKED_BYTES: Final = 4 * 1024 * 1024
_TURN_BYTES: Final = 128 * 1024
_CONDITION: Final = re.compile(r"([^=<>!\s]+)\s*(?:(!=|=|<|>)\s*(.*))?", re.DOTALL)
_STEP: Final = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class FieldCondition:
    """A condition on a field of a JSON value: ``fare.amount>12``, ``legs[0].to=Bonn``, ``paid``."""

    path: tuple[str | int, ...]
    sign: str | None
    wanted: Any

    def holds(self, value: bytes) -> bool:
        """Return whether a value is JSON with such a field."""
        try:
            found = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return False
        for step in self.path:
            if isinstance(step, str) and isinstance(found, dict):
                found = found.get(step, _MISSING)
            elif isinstance(step, int) and isinstance(found, list) and step < len(found):
                found = found[step]
            else:
                return False
        return found is not _MISSING and self._compares(found)

    def _compares(self, found: Any) -> bool:
        if self.sign is None:
            return True
        if self.sign in ("=", "!="):
            same = _same(found, self.wanted)
            return same if self.sign == "=" else not same
        if not _is_number(found):
            return False
        return bool(found < self.wanted if self.sign == "<" else found > self.wanted)

    @property
    def word(self) -> str | None:
        """A text that is in every value for which the condition holds; None without one."""
        names = [step for step in self.path if isinstance(step, str)]
        # Other names may be spelled in JSON by escapes.
        return next((name for name in reversed(names) if re.fullmatch(r"[\w-]+", name, re.A)), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(found: Any, wanted: Any) -> bool:
    """Compare a field with what was typed: 12, true, null, "12" or plain text."""
    if isinstance(found, str):
        return found == (wanted if isinstance(wanted, str) else str(wanted))
    alike = type(found) is type(wanted) or (_is_number(found) and _is_number(wanted))
    return alike and bool(found == wanted)


def read_condition(text: str) -> FieldCondition:
    """Return a condition on a field as it is typed; raises InvalidInput."""
    match = _CONDITION.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(_wrong(text))
    spelled, sign, typed = match.groups()
    try:
        steps = tuple(name or int(place) for name, place in _STEP.findall(spelled))
    except ValueError:  # of thousands of digits
        raise InvalidInput(_wrong(text)) from None
    if _spelled(steps) != spelled.removeprefix("."):
        raise InvalidInput(_wrong(text))
    wanted: Any = typed
    if sign is not None:
        try:
            wanted = msgspec.json.decode(typed)
        except msgspec.DecodeError:
            wanted = typed
        except RecursionError:
            raise InvalidInput(_wrong(text)) from None
        if sign in "<>" and not _is_number(wanted):
            raise InvalidInput(f"{text!r} compares with {typed!r}, which is no number; use = or !=")
    return FieldCondition(steps, sign, wanted)


def _spelled(steps: tuple[str | int, ...]) -> str:
    words = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps]
    return "".join(words).removeprefix(".")


def _wrong(text: str) -> str:
    shown = text if len(text) <= 100 else f"{text[:100]}…"
    return (
        f"{shown!r} is no condition on a field; write a path, and perhaps =, !=, < or > and a "
        "value, like fare.amount>12 or legs[0].to=Bonn"
    )


@dataclass(frozen=True, slots=True)
class SearchFilter:
    """What is searched for; every part that is given must hold.

    ``tag`` is the whole tag, in which * stands for any text; ``text`` is in the value, and
    ``where`` holds for it.
    """

    tag: str | None = None
    text: str | None = None
    where: FieldCondition | None = None

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that are wanted."""
        if self.tag is not None:
            tags = batch.column("tag")
            pattern = "(?s)^" + ".*".join(map(re.escape, self.tag.split("*"))) + "$"
            batch = batch.filter(
                pc.match_substring_regex(tags, pattern)
                if "*" in self.tag
                else pc.equal(tags, self.tag)
            )
        for text in (self.text, None if self.where is None else self.where.word):
            if text and batch.num_rows:
                batch = batch.filter(pc.match_substring(batch.column("value"), text))
        if self.where is not None and batch.num_rows:
            holds: Callable[[bytes], bool] = self.where.holds
            batch = batch.filter(pa.array(map(holds, batch.column("value").to_pylist())))
        return batch


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """What a search is asked for, and its budget; Stream.search says what each means."""

    tag: str | None
    text: str | None
    where: str | None
    start: int | None
    newest_first: bool
    count: int
    max_messages: int | None
    max_ms: int | None
    max_bytes: int | None = None


def search(stream: StreamHandle, asked: SearchRequest) -> Operation[Searched[Any]]:
    """Search from an offset on, or back from it, within a budget; raises InvalidInput.

    It looks at one part at least, and may so take a little more than its budget.
    """
    where = None if asked.where is None else read_condition(asked.where)
    sought = SearchFilter(asked.tag, asked.text, where)
    start, backwards = asked.start, asked.newest_first
    count = check_count(asked.count, "count", MAX_READ)
    messages_left = _limit(asked.max_messages, "max_messages", MAX_OFFSET)
    patience = _limit(asked.max_ms, "max_ms", MAX_MS)
    room = check_max_bytes(asked.max_bytes)
    begun = yield Clock()
    facts = yield from info(stream)
    low, high = facts.first, facts.last
    if start is not None:
        check_offset(start, "start")
        low, high = (low, min(start, high)) if backwards else (max(start, low), high)
    at = high if backwards else low
    found: list[Message[Any]] = []
    searched = parts = 0
    while low <= at <= high and len(found) < count:
        left = messages_left - searched
        if parts and (left <= 0 or (yield Clock()) - begun >= patience):
            break
        parts += 1
        part = max(min(_part_length(facts), left), 1)
        part_low = max(at - part + 1, low) if backwards else at
        part_high = at if backwards else min(at + part - 1, high)
        wish = _PartWish(part_low, part_high, backwards, count - len(found), room)
        rows, own = yield from _part(stream, sought, wish)
        searched += rows
        found += own
        at = part_low - 1 if backwards else part_high + 1
        if room is not None:
            room -= bytes_of(own)
        if own and (len(found) == count or (room is not None and room <= 0)):
            at = own[-1].offset + (-1 if backwards else 1)
            break
    ended = at < low or at > high
    return Searched(
        messages=found,
        searched=searched,
        low=at + 1 if backwards else low,
        high=high if backwards else at - 1,
        next=None if ended else at,
        first=facts.first,
        last=facts.last,
        ms=round((yield Clock()) - begun),
    )


def _limit(given: int | None, what: str, most: int) -> int:
    return most if given is None else check_count(given, what, most)


def _part_length(facts: StreamInfo) -> int:
    each = facts.bytes / facts.length if facts.length else 1
    return max(min(int(_PART_BYTES / max(each, 1)), _PART_OFFSETS), 1)


class _PartWish(NamedTuple):
    """What a search wants of a part: its first or last messages that fit, up to so many bytes."""

    low: int
    high: int
    backwards: bool
    most: int
    room: int | None

    def best(self, found: list[Message[Any]]) -> list[Message[Any]]:
        """Return those that are wanted of messages that fit, which are in the wanted order."""
        return first_of(found[: self.most], self.room)

    def far_exceeded(self, count: int, size: int) -> bool:
        """Return whether so many messages of so many bytes are worth to be cut."""
        return count > 2 * self.most or (self.room is not None and size > 2 * self.room)


def _part(
    stream: StreamHandle, sought: SearchFilter, wish: _PartWish
) -> Operation[tuple[int, list[Message[Any]]]]:
    """Return how many messages a part has, and those that are wanted, in the order of the search.

    Of those that fit, about twice as many are kept as are wanted.
    """
    rows, at, size = 0, wish.low, 0
    found: list[Message[Any]] = []
    while at:
        scanned = yield from scan_part(
            stream, at, wish.high + 1, headers=True, most=_REPLY_BYTES, max_bytes=_UNPACKED_BYTES
        )
        for batch in scanned.pieces:
            rows += batch.num_rows
            for piece in _pieces(batch):
                new = _messages(sought.of(piece))
                found = new[::-1] + found if wish.backwards else found + new
                size += bytes_of(new)
                if wish.far_exceeded(len(found), size):
                    found = wish.best(found)
                    size = bytes_of(found)
                yield YieldTurn()
        at = scanned.next
    return rows, wish.best(found)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch, so that it takes about a millisecond to look at each piece of it."""
    rows = max(batch.num_rows * _TURN_BYTES // max(batch.nbytes, 1), 1)
    for at in range(0, batch.num_rows, rows):
        yield batch.slice(at, rows)


def _messages(batch: pa.RecordBatch) -> list[Message[Any]]:
    if not batch.num_rows:
        return []
    times = batch.column("time").cast(pa.int64()).to_pylist()
    columns = [batch.column(name).to_pylist() for name in ("offset", "tag", "value")]
    headers = batch.column("headers").to_pylist()
    return [
        message_of(offset, tag, value, time_ms, 0, own)
        for offset, tag, value, time_ms, own in zip(*columns, times, headers, strict=True)
    ]


# The profile of a stream: how its messages are spread over offsets, times and bytes, by its nodes.
#
# No message is read. The index of nodes is looked at in as many places as the picture has, so that
# a stream of any length costs as much as a short one. Between two places an even distribution is
# assumed; with no more nodes than places, every count is exact up to the nodes at its borders.


MAX_SAMPLES: Final = 512


class SampledNode(NamedTuple):
    """A node: its offsets, messages and bytes; no message up to its last is newer than a time."""

    base: int
    last: int
    messages: int
    bytes: int
    newest_ms: int


class TimeBar(NamedTuple):
    """About how many messages a span of time has, and where they begin."""

    from_ms: int
    to_ms: int
    first: int
    messages: int


@dataclass(frozen=True, slots=True)
class StreamProfile:
    """How a part of a stream is stored in nodes.

    ``nodes`` are those of the part; ``sample`` has some of them at equal distances, or all.
    ``cold`` is the offset up to which nodes are cold, ``holes`` how many offsets of the stream have
    no message any more, ``bytes`` what all nodes take, ``tail_bytes`` what is not sealed. ``tail``
    has times of some messages that are not sealed, by their offsets.
    """

    first: int
    last: int
    sealed: int
    cold: int
    holes: int
    bytes: int
    tail_bytes: int
    time: int
    nodes: int
    cold_nodes: int
    all_nodes: int
    all_cold_nodes: int
    before: tuple[int, int] | None
    sample: list[SampledNode]
    tail: list[tuple[int, int]]

    @property
    def exact(self) -> bool:
        """Whether every node of the part is in the sample."""
        return len(self.sample) == self.nodes

    def points(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return offsets and times that rise together: up to the offset nothing is newer."""
        found = [] if self.before is None else [self.before]
        found += [(node.last, node.newest_ms) for node in self.sample]
        found += self.tail
        newest = list(accumulate((time_ms for _, time_ms in found), max))
        return [
            (min(offset, high), time_ms)
            for (offset, _), time_ms in zip(found, newest, strict=True)
            if offset >= low - 1
        ]

    def hot_and_cold_bytes(self) -> tuple[int, int]:
        """Return about how many bytes of the nodes are in hot and in cold ones."""
        hot = [node for node in self.sample if node.last > self.cold]
        hot_nodes = self.all_nodes - self.all_cold_nodes
        if not hot or not hot_nodes:
            return 0, self.bytes
        if hot_nodes == self.all_nodes:
            return self.bytes, 0
        share = round(sum(node.bytes for node in hot) / len(hot) * hot_nodes)
        return min(share, self.bytes), max(self.bytes - share, 0)


def stream_profile(
    stream: str, first: int, last: int, sample: int = 256
) -> Operation[StreamProfile]:
    """Return how first..last of a stream is stored in nodes; one call, which changes nothing."""
    check_int(sample, "sample", 1, MAX_SAMPLES)
    call = Call("hw_stream_profile", stream_key(stream), (first, last, sample), read_only=True)
    found: dict[str, Any] = {key.decode(): value for key, value in rows((yield call), 2)}
    before, nodes, tail = found.pop("before"), found.pop("sample"), found.pop("tail")
    return StreamProfile(
        **found,
        before=(before[0], before[1]) if before else None,
        sample=[SampledNode(*row) for row in rows(nodes, 5)],
        tail=list(rows(tail, 2)),
    )


def histogram(profile: StreamProfile, low: int, high: int, bars: int) -> list[TimeBar]:
    """Return about how many messages of low..high each of this many equal spans of time has."""
    low, high = max(low, profile.first), min(high, profile.last)
    points = profile.points(low, high)
    if low > high or not points:
        return []
    # The first node holds messages from some time up to its newest: without a node before it, the
    # next one says how long such a node lasts.
    times = [time_ms for _, time_ms in points]
    begin = times[0] if profile.before or len(times) < 2 else max(2 * times[0] - times[1], 0)
    span = max(times[-1] - begin, 1)
    if begin < times[0] or len(points) < 2:
        points.insert(0, (low - 1, begin))
    width = max(-(-span // bars), 1)
    edges = [begin + width * bar for bar in range(-(-span // width) + 1)]
    reached = [low - 1, *(_offset_by(points, edge) for edge in edges[1:-1]), high]
    reached = [max(min(offset, high), low - 1) for offset in reached]
    return [
        TimeBar(
            edges[bar], edges[bar + 1], reached[bar] + 1, max(reached[bar + 1] - reached[bar], 0)
        )
        for bar in range(len(edges) - 1)
    ]


def _offset_by(points: Sequence[tuple[int, int]], time_ms: int) -> int:
    """Return about which offset was reached by a time."""
    place = bisect_left(points, time_ms, key=lambda point: point[1])
    if place == 0:
        return points[0][0]
    if place == len(points):
        return points[-1][0]
    (low, since), (high, until) = points[place - 1], points[place]
    return low + round((high - low) * (time_ms - since) / max(until - since, 1))


# The ruler of a stream: the state of its offsets in each group, as ranges.
#
# Offsets are dense and what is pending is kept as ranges, so that a part of any length costs as
# much as a short one: at most as many ranges as the picture has cells.


MAX_CELLS: Final = 512


class PendingRange(NamedTuple):
    """Offsets that were delivered together and are not acknowledged.

    They are looked at again at ``due_ms``, 0 for now. With ``ranges`` above 1 it is the hull of
    that many, which are too close for the picture; attempt and deadline are those of the first.
    """

    first: int
    last: int
    attempt: int
    due_ms: int
    ranges: int


class DeadOffsets(NamedTuple):
    """Offsets that a group gave up together, and their number of attempts.

    With ``ranges`` above 1 it is the hull of that many, which are too close for the picture.
    """

    first: int
    last: int
    attempt: int
    ranges: int = 1


class NotKnown(NamedTuple):
    """Offsets before this one may not be done, and why that is not known."""

    before: int
    why: str


@dataclass(frozen=True, slots=True)
class GroupRuler:
    """What happened to a part of a stream in one group.

    Offsets from ``next`` on are new; from ``start`` on and before ``next`` they are done, unless
    they are in one of the lists. ``start`` is where the group began, or the lowest offset that it
    was set to since; 0 when that is not known. ``gaps`` are the newest 16 ranges that the group
    missed, ``missed`` counts the messages of all, ``jumps`` are what a seek passed over.
    ``dead_unknown`` ranges of dead letters are somewhere before ``next`` and in no list.
    """

    name: str
    next: int
    ack_offset: int
    pending: list[PendingRange]
    dead: list[DeadOffsets]
    gaps: list[tuple[int, int]]
    start: int = 0
    jumps: list[tuple[int, int]] = field(default_factory=list)
    missed: int = 0
    dead_unknown: int = 0

    @property
    def not_known(self) -> NotKnown | None:
        """Return what lies before ``next``, is in no list, and may not be done; None: it is."""
        if self.dead_unknown:
            return NotKnown(
                self.next,
                f"done, or a dead letter: {self.dead_unknown:,} ranges of dead letters are noted "
                "without the offsets of their messages; redrive or discard them",
            )
        if not self.start:
            return NotKnown(self.next, "done, or before the group's start, which is not known")
        if self.missed > sum(high - low + 1 for low, high in self.gaps):
            # A gap is dropped for a newer one, which ends where the stream begins by then.
            end = max(high for _, high in self.gaps) + 1
            why = "done, or missed: of what the group missed, the newest 16 ranges are kept"
            return NotKnown(end, why)
        return None


def group_ruler(
    group: GroupHandle, first: int, last: int, cells: int = 256
) -> Operation[GroupRuler | None]:
    """Return what happened to first..last in a group, None when it is gone; changes nothing."""
    check_int(cells, "cells", 1, MAX_CELLS)
    args = (group.name, first, last, cells)
    try:
        reply = yield Call("hw_group_ruler", group.key, args, read_only=True)
    except Refusal:
        return None
    facts: dict[str, Any] = {key.decode(): value for key, value in rows(reply, 2)}
    facts["pending"] = [PendingRange(*row) for row in rows(facts["pending"], 5)]
    facts["dead"] = [DeadOffsets(*row) for row in rows(facts["dead"], 4)]
    for ranges in ("gaps", "jumps"):
        facts[ranges] = list(rows(facts[ranges], 2))
    return GroupRuler(name=group.name, **facts)


# How many messages a stream holds from a position on, and how long the oldest has waited.
#
# This is for readers that keep their position elsewhere: SQL consumers, queries of Spark. The lag
# of groups and registered readers is part of the info of their stream.


class Lag(NamedTuple):
    """What waits at a position: ``lag`` messages, the oldest of which is ``lag_ms`` old."""

    lag: int
    lag_ms: int


def lag_at(stream: str, position: int) -> Operation[Lag]:
    """Return what a stream holds from a position on; opens one node at most."""
    call = Call("hw_stream_lag", stream_key(stream), (position,), read_only=True)
    begin, last, now_ms = yield call
    if begin > last:
        return Lag(0, 0)
    oldest = yield from reading.read_from(StreamHandle(stream, set()), begin, 1, None, whole=False)
    age_ms = max((now_ms - one.time_ms for one in oldest.messages), default=0)
    return Lag(last + 1 - begin, max(age_ms, 0))


_PART: Final = 5_000
# Tags are remembered: this many take some 50 MB.
_MOST_TAGS: Final = 500_000


class CompactionEstimate(NamedTuple):
    """Of the newest ``searched`` messages, how many would go, and the share of their bytes.

    ``whole`` says that these are all messages of the stream.
    """

    searched: int
    removed: int
    share: float
    tags: int
    whole: bool


def estimate(stream: str, max_ms: int) -> Operation[CompactionEstimate]:
    """Count what compaction would remove, from the newest message back, for about this long."""
    handle = StreamHandle(stream, set())
    begun = yield Clock()
    bounds = yield from extent(stream)
    seen: set[str] = set()
    searched = removed = size = removed_size = 0
    high = bounds.last
    while high >= bounds.first and len(seen) < _MOST_TAGS:
        if searched and (yield Clock()) - begun >= max_ms:
            break
        at = low = max(high - _PART + 1, bounds.first)
        parts = []
        while at:
            scanned = yield from scan_part(handle, at, high + 1)
            parts += scanned.pieces
            at = scanned.next
        for batch in reversed(parts):
            lengths = pc.binary_length(batch.column("value")).to_pylist()
            for tag, length in zip(
                reversed(batch.column("tag").to_pylist()), reversed(lengths), strict=True
            ):
                searched, size = searched + 1, size + length
                if tag in seen:
                    removed, removed_size = removed + 1, removed_size + length
                seen.add(tag)
        high = low - 1
    share = removed_size / size if size else 0.0
    return CompactionEstimate(searched, removed, share, len(seen), high < bounds.first)
