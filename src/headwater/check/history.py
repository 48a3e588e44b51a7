"""Histories of what clients saw, and the rules that they must obey; without I/O.

A history is the events of many clients, each recorded by the client itself: before a call, and
after it if the client was still alive. Times are milliseconds of one clock that all of them read.
Every message has a value that no other call writes, so it can be recognised wherever it appears.

A call that was begun and not ended may or may not have happened, and both are right; but it
happened at most once, and as a whole. The checks use the events alone. When times overlap, the
store gets the benefit of the doubt, so an anomaly is always a fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import msgspec

# The store counts whole milliseconds, of a clock that is not the clients'.
CLOCK_MS = 5


class WriteBegun(msgspec.Struct, frozen=True, tag=True):
    """A write of one batch begins; a repeat has the same values."""

    call: str
    at: float
    values: list[str]


class WriteDone(msgspec.Struct, frozen=True, tag=True):
    """A write was acknowledged, with the offsets of its batch."""

    call: str
    at: float
    first: int
    last: int


class ReadBegun(msgspec.Struct, frozen=True, tag=True):
    """A member of a group asks for messages; without ``ack_ms``, at most once."""

    call: str
    at: float
    group: str
    ack_ms: int | None = None


class ReadDone(msgspec.Struct, frozen=True, tag=True):
    """A member received messages: offset, value, attempt."""

    call: str
    at: float
    messages: list[tuple[int, str, int]]


class AckBegun(msgspec.Struct, frozen=True, tag=True):
    """A member begins to acknowledge messages."""

    call: str
    at: float
    group: str
    offsets: list[int]


class AckDone(msgspec.Struct, frozen=True, tag=True):
    """Messages were acknowledged."""

    call: str
    at: float


class ReturnBegun(msgspec.Struct, frozen=True, tag=True):
    """A member begins to return messages; from now on they may be redelivered at any time."""

    call: str
    at: float
    group: str
    offsets: list[int]


HistoryEvent: TypeAlias = (
    WriteBegun | WriteDone | ReadBegun | ReadDone | AckBegun | AckDone | ReturnBegun
)


class Anomaly(NamedTuple):
    """A rule that was broken: its name, and what was seen."""

    name: str
    seen: str


def check_log(events: Iterable[HistoryEvent], log: Sequence[tuple[int, str]]) -> list[Anomaly]:
    """Compare a log, as (offset, value) from its first offset on, with what writers saw.

    lost          an acknowledged message is not in the log
    misplaced     it is in the log, but not at the offset that was acknowledged
    duplicate     a message is in the log twice
    torn          a batch is in the log in part, or not in one piece, or not in its order
    gap           offsets are not dense, or do not begin with 1
    invented      the log has a message that nobody wrote
    reordered     a write that began after another was acknowledged is before it
    """
    return list(_check_log(list(events), log))


def check_group(
    events: Iterable[HistoryEvent], log: Sequence[tuple[int, str]], group: str, *, drained: bool
) -> list[Anomaly]:
    """Compare what the members of a group saw with the log; ``drained``: all of it was read.

    altered           a message was delivered with another value than the log has
    doubled           it was delivered again before its retry time, or the same attempt twice, or,
                      without retry, at all
    after ack         it was delivered by a read that began after its ack was confirmed
    undelivered       it was never delivered to anybody, although the group was drained
    """
    return list(_check_group(_Group(events, group), dict(log), drained))


class _Batch:
    """Every call that wrote the same values."""

    def __init__(self, values: tuple[str, ...]) -> None:
        self.values = values
        self.begun = float("inf")
        self.ended = float("inf")
        self.places: set[tuple[int, int]] = set()


def _batches(events: list[HistoryEvent]) -> list[_Batch]:
    batches: dict[tuple[str, ...], _Batch] = {}
    calls: dict[str, _Batch] = {}
    for event in events:
        if isinstance(event, WriteBegun):
            values = tuple(event.values)
            batch = calls[event.call] = batches.setdefault(values, _Batch(values))
            batch.begun = min(batch.begun, event.at)
        elif isinstance(event, WriteDone):
            batch = calls[event.call]
            batch.ended = min(batch.ended, event.at)
            batch.places.add((event.first, event.last))
    return list(batches.values())


def _check_log(events: list[HistoryEvent], log: Sequence[tuple[int, str]]) -> Iterator[Anomaly]:
    for place, (offset, value) in enumerate(log, 1):
        if offset != place:
            yield Anomaly("gap", f"offset {offset} ({value}) stands where {place} should be")
            break
    where: dict[str, list[int]] = defaultdict(list)
    for offset, value in log:
        where[value].append(offset)
    batches = _batches(events)
    written = {value for batch in batches for value in batch.values}
    for value, offsets in where.items():
        if value not in written:
            yield Anomaly("invented", f"{value} at {offsets}")
        if len(offsets) > 1:
            yield Anomaly("duplicate", f"{value} at {offsets}")
    for batch in batches:
        yield from _check_batch(batch, where)
    yield from _check_order(batches, where)


def _check_batch(batch: _Batch, where: dict[str, list[int]]) -> Iterator[Anomaly]:
    found = [where[value][0] for value in batch.values if value in where]
    name = f"{batch.values[0]}..{batch.values[-1]}"
    missing = len(batch.values) - len(found)
    if missing and batch.places:
        yield Anomaly("lost", f"{missing} of {len(batch.values)} messages of {name}")
    elif missing and found:
        yield Anomaly("torn", f"{len(found)} of {len(batch.values)} messages of {name} are there")
    if any(after != before + 1 for before, after in pairwise(found)):
        yield Anomaly("torn", f"{name} is at {found}")
    for first, last in sorted(batch.places):
        if not missing and (found[0], found[-1]) != (first, last):
            yield Anomaly("misplaced", f"{name} at {found[0]}, acknowledged at {first}")


def _check_order(batches: list[_Batch], where: dict[str, list[int]]) -> Iterator[Anomaly]:
    """Find writes that are before one that was acknowledged when they began."""
    present = [batch for batch in batches if batch.values[0] in where]
    ended = sorted((batch for batch in present if batch.places), key=lambda batch: batch.ended)
    begun = sorted(present, key=lambda batch: batch.begun)
    highest, name, at = 0, "", 0
    for batch in begun:
        while at < len(ended) and ended[at].ended < batch.begun:
            offset = where[ended[at].values[0]][0]
            if offset > highest:
                highest, name = offset, ended[at].values[0]
            at += 1
        offset = where[batch.values[0]][0]
        if offset < highest:
            yield Anomaly(
                "reordered", f"{batch.values[0]} at {offset} began after {name} at {highest}"
            )


class _Delivery(NamedTuple):
    """One message that a member received: between which times it was delivered, for how long."""

    begun: float
    ended: float
    value: str
    attempt: int
    ack_ms: int | None
    call: str


class _Group:
    """The part of a history that concerns one group, by offset."""

    def __init__(self, events: Iterable[HistoryEvent], name: str) -> None:
        reads: dict[str, ReadBegun] = {}
        acks: dict[str, AckBegun] = {}
        self.deliveries: dict[int, list[_Delivery]] = defaultdict(list)
        self.acked: dict[int, float] = {}
        self.returned: dict[int, list[float]] = defaultdict(list)
        self.written: dict[str, float] = {}
        for event in events:
            if isinstance(event, WriteBegun):
                for value in event.values:
                    self.written[value] = min(event.at, self.written.get(value, event.at))
            elif isinstance(event, ReadBegun) and event.group == name:
                reads[event.call] = event
            elif isinstance(event, ReadDone) and event.call in reads:
                read = reads[event.call]
                for offset, value, attempt in event.messages:
                    # A blocked member cannot have received what was not yet being written.
                    begun = max(read.at, self.written.get(value, read.at))
                    self.deliveries[offset].append(
                        _Delivery(begun, event.at, value, attempt, read.ack_ms, event.call)
                    )
            elif isinstance(event, AckBegun) and event.group == name:
                acks[event.call] = event
            elif isinstance(event, AckDone) and event.call in acks:
                for offset in acks[event.call].offsets:
                    self.acked[offset] = min(event.at, self.acked.get(offset, event.at))
            elif isinstance(event, ReturnBegun) and event.group == name:
                for offset in event.offsets:
                    self.returned[offset].append(event.at)
        self.read_at = {call: read.at for call, read in reads.items()}


def _check_group(group: _Group, log: dict[int, str], drained: bool) -> Iterator[Anomaly]:
    for offset, unordered in sorted(group.deliveries.items()):
        deliveries = sorted(unordered, key=lambda delivery: (delivery.attempt, delivery.ended))
        for delivery in deliveries:
            if log.get(offset) != delivery.value:
                yield Anomaly(
                    "altered", f"{offset} came as {delivery.value}, the log has {log.get(offset)}"
                )
            if group.acked.get(offset, float("inf")) < group.read_at[delivery.call]:
                yield Anomaly("after ack", f"{offset} to {delivery.call}")
        for one, two in pairwise(deliveries):
            if _is_double(one, two, group.returned[offset]):
                yield Anomaly(
                    "doubled",
                    f"{offset} to {one.call} (attempt {one.attempt}) and to {two.call} "
                    f"(attempt {two.attempt}) within {two.ended - one.begun:.0f} ms",
                )
    if drained:
        for offset in sorted(log.keys() - group.deliveries.keys()):
            yield Anomaly("undelivered", f"{offset} ({log[offset]})")


def _is_double(one: _Delivery, two: _Delivery, returned: list[float]) -> bool:
    if one.ack_ms is None or one.attempt == two.attempt:
        return True
    if any(at <= two.ended for at in returned):
        return False
    # The longest time that can be between the two deliveries is still too short.
    return two.ended - one.begun < one.ack_ms - CLOCK_MS
