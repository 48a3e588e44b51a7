"""What must be true of a group after calls of it have failed."""

from __future__ import annotations

import contextlib

from headwater.errors import UnknownGroup
from tests.support.group_cases import FAR, Deed, GroupCase


def drained(case: GroupCase) -> set[int]:
    """Have everything redelivered that is not done, and acknowledge it; returns the offsets."""
    found: set[int] = set()
    group = case.stream.group("g")
    last = case.stream.info().last
    while True:
        if last:
            group.nack((1, last))
        some = {message.offset for message in group.read(100, ack_ms=FAR)}
        if not some:
            return found
        assert not some & found, "what was acknowledged does not come again"
        found |= some
        assert group.ack(*some) == len(some)


def check(case: GroupCase, operate: Deed) -> None:
    """Repeat what failed, and look at everything."""
    with contextlib.suppress(UnknownGroup):
        operate(case)
    case.group.read(0)
    for waiter in ("w1", "w2"):
        case.unbox(waiter)
        case.call("hw_group_leave", "g", waiter)
    case.hw.keep(case.name)
    report = case.hw.scrub(case.name, kinds={"stream"})
    assert not report.defects, report.defects
    if case.options.get("dead_letters"):
        case.group.bury()
        case.group.redrive()
    last = case.stream.info().last
    acked = set(case.over) | set(case.seen)
    for reader in ("outside", "old"):
        case.stream.forget_reader(reader)
    found = drained(case)
    assert not found & case.over, "what is over does not come again"
    assert found | acked >= set(range(1, last + 1)), "nothing is lost"
    info = case.group.info()
    assert (info.pending, info.lag, info.waiting) == (0, 0, 0)
    assert (info.ack_offset, info.dead) == (last + 1, case.dead)
    report = case.hw.scrub(case.name, kinds={"stream"})
    assert not report.defects, report.defects
    assert case.stream.delete() or not last
    left = case.raw("KEYS", f"{case.key}*")
    assert left == [], "nothing stays of a stream that is deleted"
