"""Acknowledging messages of a group: ack, nack, extend."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from headwater.errors import StoreError
from headwater.inputs import DEADLINE, Duration
from headwater.log import counts
from headwater.log.ack_arguments import Offsets, ranges_of
from headwater.log.group_replies import RangesReply
from headwater.log.handles import GroupHandle
from headwater.log.limits import check_ms
from headwater.store.call import Argument, Call, Operation
from headwater.store.faults import Refusal

RANGES_PER_CALL = 1000


def ack(group: GroupHandle, offsets: Iterable[Offsets]) -> Operation[int]:
    """Acknowledge messages; returns how many were pending until now."""
    return (yield from on_ranges(group, "hw_group_ack", (), offsets))


def nack(group: GroupHandle, offsets: Iterable[Offsets], delay_ms: Duration) -> Operation[int]:
    """Reject messages: they are redelivered after ``delay_ms``. Returns how many were pending."""
    delay_ms = check_ms(delay_ms, "delay_ms")
    return (yield from on_ranges(group, "hw_group_postpone", (delay_ms,), offsets))


def extend(group: GroupHandle, offsets: Iterable[Offsets], retry_ms: Duration) -> Operation[int]:
    """Delay the redelivery of pending messages to ``retry_ms`` from now; returns how many."""
    retry_ms = check_ms(retry_ms, DEADLINE, 1)
    return (yield from on_ranges(group, "hw_group_postpone", (f"+{retry_ms}",), offsets))


def skip(group: GroupHandle, created: bytes, holes: list[tuple[int, int]]) -> Operation[None]:
    """Acknowledge offsets that compaction emptied, whether or not they were delivered."""
    # A group that was removed since it was read has nothing to skip.
    with contextlib.suppress(Refusal):
        yield from _in_steps(group, "hw_group_skip", (created,), ranges_of(holes))


def miss(
    group: GroupHandle, created: bytes | str, ranges: list[tuple[int, int]]
) -> Operation[None]:
    """Count offsets that the store has lost as missed, and acknowledge them.

    If that fails they stay pending, if they are; what else was read must reach its caller.
    """
    with contextlib.suppress(Refusal, StoreError):
        yield from _in_steps(group, "hw_group_missing", (created,), ranges_of(ranges))


def on_ranges(
    group: GroupHandle,
    function: str,
    args: tuple[Argument, ...],
    offsets: Iterable[Offsets],
) -> Operation[int]:
    """Do something to pending messages; returns how many. Raises UnknownGroup."""
    try:
        return (yield from _in_steps(group, function, args, ranges_of(offsets)))
    except Refusal:
        raise group.unknown() from None


def _in_steps(
    group: GroupHandle,
    function: str,
    args: tuple[Argument, ...],
    ranges: list[tuple[int, int]],
) -> Operation[int]:
    """Do something to ranges in order, as many in one call as the server does at once.

    The effect of a call stays, even if the next one fails.
    """
    total = place = 0
    while place < len(ranges):
        flat = [edge for span in ranges[place : place + RANGES_PER_CALL] for edge in span]
        words = (group.name, *args, *flat)
        call = Call(function, group.key, words, repeatable=True, messages=counts.in_ranges)
        done, at = RangesReply(*(yield call))
        total += done
        if at < 0:
            place += RANGES_PER_CALL
            continue
        while ranges[place][1] < at:
            place += 1
        ranges[place] = max(at, ranges[place][0]), ranges[place][1]
    return total
