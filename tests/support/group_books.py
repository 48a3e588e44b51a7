"""What must be true of a group after calls of it have failed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from headwater import Stream
from headwater.errors import UnknownGroup
from headwater.log import node
from headwater.log.keys import index_key, nodes_key, stream_key, tail_key
from headwater.log.replies import IndexedNode
from tests.support.failing_calls import FailingServer, Site
from tests.support.group_cases import FAR, Deed, GroupCase
from tests.support.servers import Server


def kinds(cases: dict[str, tuple[Deed, Deed]], later: set[str]) -> pytest.MarkDecorator:
    """Have a test take each kind of case; those that are for later only in long runs."""
    marked = [pytest.param(kind, marks=[pytest.mark.long] * (kind in later)) for kind in cases]
    return pytest.mark.parametrize("kind", marked)


def fail_each_call(
    failing: FailingServer, prepare: Deed, operate: Deed, check: Callable[[GroupCase], None]
) -> None:
    """Prepare a case for each call that an operation passes, fail that call, and check the case."""

    def prepared() -> GroupCase:
        case = GroupCase(failing.hw)
        prepare(case)
        return case

    assert failing.fail_in_turn(prepared, operate, lambda case, _: check(case))


def passed(failing: FailingServer, cases: dict[str, tuple[Deed, Deed]]) -> set[Site]:
    """Return the calls that the operations of some cases pass."""
    found: set[Site] = set()
    for prepare, operate in cases.values():
        case = GroupCase(failing.hw)
        prepare(case)
        with failing.armed(None) as sites:
            operate(case)
        found |= set(sites)
    return found


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


# ── What a stream says of itself, counted again from its keys and by plain reads ─────────────────


def assert_counts_are_right(server: Server, stream: Stream) -> None:
    """Fail unless all counts of a stream, its index and its nodes agree with what it holds."""
    info, key = stream.info(), stream_key(stream.name)
    messages = [m for m in stream.read(info.first, info.last + 1) if m is not None]
    assert info.length == len(messages)
    assert sum(batch.num_rows for batch in stream.scan()) == len(messages)
    with server.client() as raw:
        facts = {name.decode(): value for name, value in raw.hgetall(key).items()}
        index = raw.zrange(index_key(key), 0, -1, withscores=True)
        nodes = raw.hgetall(nodes_key(key))
        tail = raw.xrevrange(tail_key(key), count=1)
    assert "replacing" not in facts
    assert not tail or int(tail[0][0][2:]) == info.last, "the tail ends where the stream does"
    size = holes = rows = 0
    before = None
    for member, last in index:
        each = IndexedNode.of(member)
        assert before is None or each.base == before + 1, "nodes lie side by side"
        before = int(last)
        blob = nodes.pop(b"%d" % each.base)
        assert len(blob) == each.size
        assert (node.unpack(blob).num_rows if blob else 0) == each.messages
        size, rows = size + each.size, rows + each.messages
        holes += before - each.base + 1 - each.messages
    assert before is None or before == info.sealed
    assert nodes == {}, "every node is in the index"
    assert (int(facts.get("bytes", 0)), int(facts.get("holes", 0))) == (size, holes)
    assert info.nodes == len(index)
