"""Failed attempts at messages of a group: retry later, give up, or return untried."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable

from headwater.errors import HeadwaterError, InvalidInput
from headwater.failures import Failure, spelled
from headwater.log import acks, counts, dead_letters
from headwater.log.ack_arguments import Offsets, ranges_of
from headwater.log.handles import GroupHandle
from headwater.log.limits import MAX_BATCH_MESSAGES, check_count, check_ms, check_offset
from headwater.log.types import Message, TopicMessage
from headwater.store.call import Argument, Call, Operation
from headwater.store.faults import Refusal

# Each may be in a range of its own, and the server splits only this many ranges in one call.
REPORTS_PER_CALL = 64
# In the place of a delay: the message is not redelivered.
GIVE_UP = -1


def fail(group: GroupHandle, failures: Iterable[Failure]) -> Operation[int]:
    """Report failed attempts; returns how many of the messages were still pending in them.

    Each is redelivered after its delay. A message without a delay is given up, in one step, and
    then buried: by this call, or, if it does not get that far, by the next read or the housekeeper.
    """
    reports = sorted(map(_report, failures), key=lambda report: report[0])
    total = 0
    for start in range(0, len(reports), REPORTS_PER_CALL):
        part = reports[start : start + REPORTS_PER_CALL]
        words = [word for report in part for word in report]
        args: tuple[Argument, ...] = (group.name, *words)
        call = Call("hw_group_fail", group.key, args, repeatable=True, messages=counts.failed)
        try:
            total += yield call
        except Refusal as refusal:
            if refusal.code == "NO_LETTERS":
                raise no_letters(group.stream.name, group.name) from None
            raise group.unknown() from None
        if any(report[2] < 0 for report in part):
            with contextlib.suppress(HeadwaterError):
                yield from dead_letters.bury(group)
    return total


def _report(failure: Failure) -> tuple[int, int | str, int, int | str, str]:
    item, delay_ms = failure.item, failure.delay_ms
    known = isinstance(item, Message | TopicMessage)
    return (
        check_offset(item.offset if known else item),
        (item.attempt or "") if known else "",
        GIVE_UP if delay_ms is None else check_ms(delay_ms, "delay_ms"),
        "" if failure.held_ms is None else check_ms(failure.held_ms, "held_ms"),
        spelled(failure.error),
    )


def no_letters(stream: str, group: str) -> InvalidInput:
    """Return the error for a group without dead letters."""
    return InvalidInput(
        f"group {group!r} of {stream!r} keeps no dead letters, so nothing can be buried; open it "
        "with dead_letters=True"
    )


def bury(
    group: GroupHandle, offsets: Collection[Offsets], error: BaseException | str | None
) -> Operation[int]:
    """Give messages up; without any, those that have expired. Returns how many."""
    if not offsets:
        _, buried = yield from dead_letters.give_up(group)
        return buried
    ranges = ranges_of(offsets)
    messages = sum(last - first + 1 for first, last in ranges)
    check_count(messages, "number of messages to bury", MAX_BATCH_MESSAGES)
    each = (offset for first, last in ranges for offset in range(first, last + 1))
    return (yield from fail(group, [Failure(offset, error) for offset in each]))


def release(group: GroupHandle, offsets: Iterable[Offsets]) -> Operation[int]:
    """Return messages untried: the attempt does not count; returns how many were pending."""
    return (yield from acks.on_ranges(group, "hw_group_release", (), offsets))
