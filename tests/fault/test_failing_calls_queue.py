"""Queues while any call of a server function fails: all of an operation happens, or nothing.

Every case is tried with each of its calls failing, once or from then on; and again with each of its
commands denied from a call on, and a server that then restarts. Afterwards the counts fit what is
there, nothing is lost or twice, and a client that meets no failure repeats the operation.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from headwater import Delivery, Limits, Queue
from headwater.kernel.inputs import NO_LIMITS
from tests.support import queue_cases as cases
from tests.support.failing_calls import FailingServer, Failure
from tests.support.queue_books import audit, contents, counts_of, keys_of
from tests.support.queue_cases import LONG_MS, Case, Deed

pytestmark = [pytest.mark.fault, pytest.mark.slow]
ALL, SOME = slice(None), slice(1, 3)
LIMITS = Limits(max_in_flight=1000, rate="1000000/s burst 1000")
restarting = pytest.mark.parametrize("restarts", [False, True], ids=["", "restart"])


# Each of these has a neighbour that passes nearly the same calls.
LATER = {
    *(f"fail {ALL} 0", f"fail {SOME} None", "fail for the last time"),
    *("fail to waiters", "why letters failed", "take limits off", "wait for a token"),
}


def with_restarts(names: Iterable[str]) -> pytest.MarkDecorator:
    """Try each name without a restart and with one; the short run restarts for every third."""
    rows = []
    for place, name in enumerate(names):
        later = [pytest.mark.long] if name in LATER else []
        marks = [pytest.mark.long] if place % 3 else later
        rows += [
            pytest.param(name, False, id=name, marks=later),
            pytest.param(name, True, id=f"{name}-restart", marks=marks),
        ]
    return pytest.mark.parametrize(("name", "restarts"), rows)


class Trial(NamedTuple):
    """What is done before an operation, and the operation."""

    prepare: Deed
    operate: Deed


WHOLE: dict[str, Trial] = {
    **{
        f"push {count} {options}": Trial(cases.nothing, cases.push_many(count, **options))
        for count in (1, 30)
        for options in (
            dict[str, Any](),
            {"delay_ms": LONG_MS},
            {"ttl_ms": LONG_MS, "priority": -5},
        )
    },
    "push in steps": Trial(cases.ask_for_one, cases.push_many(1500)),
    "push after keys": Trial(cases.keys_that_are_over, cases.push_many(1, dedupe=["c"])),
    **{
        f"pop {count} {ack_ms}": Trial(cases.nothing, cases.pop(count, ack_ms))
        for count in (1, 20, 1000)
        for ack_ms in (None, LONG_MS)
    },
    "pop what varies": Trial(cases.vary, cases.pop(1000, LONG_MS)),
    **{
        f"{deed} {some}": Trial(cases.nothing, cases.settle(deed, some))
        for deed in ("ack", "nack", "release")
        for some in (ALL, SOME)
    },
    **{
        f"extend {some}": Trial(cases.nothing, cases.settle("extend", some, ack_ms=2 * LONG_MS))
        for some in (ALL, SOME)
    },
    **{
        f"fail {some} {delay_ms}": Trial(cases.nothing, cases.fail(some, delay_ms))
        for some in (ALL, SOME)
        for delay_ms in (0, None)
    },
    "fail for the last time": Trial(cases.failed_twice, cases.fail(ALL, LONG_MS)),
    "ack when waits are saved": Trial(cases.waits_are_due, cases.settle("ack", SOME)),
    "ack the rest": Trial(cases.ack_one, cases.settle("ack", ALL)),
    "nack what varies": Trial(cases.vary, cases.settle("nack", ALL, delay_ms=LONG_MS)),
    "pop within limits": Trial(cases.limit(LIMITS), cases.pop(20, LONG_MS)),
    "set limits": Trial(cases.nothing, cases.limit(LIMITS)),
    "configure": Trial(cases.nothing, lambda case: case.queue.configure(max_attempts=2)),
    "look": Trial(cases.nothing, cases.look),
    "look at what varies": Trial(cases.vary, cases.look),
}
# What may stop between two steps that are whole.
STEPS: dict[str, Trial] = {
    "redrive": Trial(cases.nothing, lambda case: case.queue.redrive()),
    "redrive some": Trial(cases.nothing, cases.letters("redrive", 2)),
    "redrive what failed": Trial(cases.failed, lambda case: case.queue.redrive()),
    "why letters failed": Trial(cases.failed, lambda case: case.queue.dead()),
    "promote": Trial(cases.nothing, cases.promote),
    "promote to waiters": Trial(cases.two_wait, cases.promote),
    "fail to waiters": Trial(cases.two_wait, cases.fail(SOME, 0)),
    "discard": Trial(cases.nothing, cases.discard_all),
    "pop what is damaged": Trial(cases.damage, cases.pop(1000, LONG_MS)),
    "ack what is damaged": Trial(cases.damage, cases.settle("ack", ALL)),
    "look at what is damaged": Trial(cases.damage, cases.look),
    "pop what was changed": Trial(cases.change_a_value, cases.pop(1000, LONG_MS)),
    "keep": Trial(cases.producer, cases.keep),
    "keep what varies": Trial(cases.vary, cases.keep),
    "wait": Trial(cases.empty, lambda case: case.wait("w")),
    "wait again": Trial(cases.two_wait, lambda case: case.wait("first", 2, "1")),
    "wait behind one who is gone": Trial(cases.a_silent_one_waits, lambda case: case.wait("w")),
    "stop waiting": Trial(
        cases.two_wait,
        lambda case: case.call("hw_queue_pop", 2, LONG_MS, f"2:{LONG_MS}:first", 0, "1", ""),
    ),
    "push to waiters": Trial(cases.two_wait, cases.push_many(3)),
    "push to one who is gone": Trial(cases.a_silent_one_waits, cases.push_many(1)),
    "push later": Trial(cases.two_wait, cases.push_many(1, delay_ms=500)),
    "fetch": Trial(cases.served, lambda case: case.wait("first", 2, "1")),
    "fetch what came": Trial(cases.served, cases.fetch),
    "look after a poke": Trial(cases.poked, lambda case: case.wait("first", 2, "1", "poke")),
    "leave": Trial(cases.served, lambda case: case.leave("first", 2)),
    "nack to waiters": Trial(cases.two_wait, cases.settle("nack", SOME)),
    "redrive to waiters": Trial(cases.two_wait, lambda case: case.queue.redrive()),
    "wait for a token": Trial(cases.without_tokens, lambda case: case.wait("w")),
    "ack to one who waits": Trial(cases.waits_for_a_slot, cases.settle("ack", SOME)),
    "take limits off": Trial(cases.waits_for_a_slot, cases.limit(NO_LIMITS)),
    "pause": Trial(cases.two_wait, lambda case: case.queue.pause()),
    "resume": Trial(cases.pause, lambda case: case.queue.resume()),
}


def go_on(case: Case) -> None:
    """Let a client take everything out that can be: each message once, and the counts end at 0."""
    hw, queue = case.hw, case.queue
    queue.resume()
    queue.limit(NO_LIMITS)
    expected = sorted(
        row[0] for row in contents(queue) if row[1] == "ready" and row[0] != b"mortal"
    )
    taken: list[Delivery] = []
    while some := queue.pop(30, ack_ms=LONG_MS):
        taken += some
    assert sorted(d.value for d in taken) == expected
    assert queue.ack(*taken) == len(taken)
    audit(hw, queue)
    facts = queue.stats()
    assert (facts.ready, facts.dead) == (0, queue.discard())
    audit(hw, queue)
    assert queue.delete()
    boxes = {key for key in keys_of(hw, queue) if key.startswith(":box:")}
    assert keys_of(hw, queue) == boxes, "a box goes by itself"


def heal(case: Case, restarted: bool = False) -> None:
    """Make a call that may write, by somebody who may: it takes back what is unfinished.

    After a restart there is nothing to take back. Only texts that nobody needs may have stayed.
    """
    if restarted:
        defects = case.hw.repair(case.queue.name, dry_run=False).repaired
        assert {defect.expected for defect in defects} <= {"nothing, as they are done"}
    case.queue.extend(*case.held, ack_ms=LONG_MS)
    audit(case.hw, case.queue)


def values_of(rows: list[tuple[Any, ...]]) -> list[bytes]:
    return sorted(row[0] for row in rows if row[1] != "damaged" and row[0] != b"mortal")


@with_restarts(WHOLE)
def test_an_operation_is_done_or_as_if_it_never_was(
    failing: FailingServer, name: str, restarts: bool
) -> None:
    prepare, operate = WHOLE[name]

    def fresh() -> Case:
        case = cases.make_case(failing.hw)
        prepare(case)
        case.before = contents(case.queue)
        return case

    clean = fresh()
    operate(clean)
    done = contents(clean.queue)
    audit(failing.hw, clean.queue)

    def look(case: Case, _: Failure) -> None:
        heal(case, restarts)
        found = contents(case.queue)
        assert [row[:4] for row in found] in ([row[:4] for row in case.before], done)
        if name.startswith("pop") and found != case.before and not name.endswith("None"):
            assert values_of(found) == values_of(case.before)
        if name.startswith("pop") and name.endswith("None"):
            gone = [(delivery.value, "") for delivery in case.taken]
            assert values_of([*found, *gone]) == values_of(case.before)
        go_on(case)

    failing.fail_in_turn(fresh, operate, look, forgetting=restarts)


@with_restarts(STEPS)
def test_a_step_that_fails_loses_nothing(failing: FailingServer, name: str, restarts: bool) -> None:
    prepare, operate = STEPS[name]

    def fresh() -> Case:
        case = cases.make_case(failing.hw)
        prepare(case)
        case.before = contents(case.queue)
        return case

    clean = fresh()
    operate(clean)
    done = values_of(contents(clean.queue))

    def look(case: Case, _: Failure) -> None:
        heal(case, restarts)
        assert values_of(contents(case.queue)) in (values_of(case.before), done)
        operate(case)
        audit(case.hw, case.queue)
        go_on(case)

    failing.fail_in_turn(fresh, operate, look, forgetting=restarts)


@restarting
@pytest.mark.parametrize("deed", ["purge", "delete"])
def test_a_queue_is_purged_or_deleted_as_a_whole(
    failing: FailingServer, deed: str, restarts: bool
) -> None:
    def fresh() -> Case:
        return cases.make_case(failing.hw)

    def look(case: Case, _: Failure) -> None:
        audit(case.hw, case.queue)
        assert contents(case.queue) in (case.before, [])
        getattr(case.queue, deed)()
        assert contents(case.queue) == []
        assert case.queue.push(b"v", dedupe="known"), "the key counts no more"
        assert [d.value for d in case.queue.pop(9)] == [b"v"]
        audit(case.hw, case.queue)

    failing.fail_in_turn(fresh, lambda case: getattr(case.queue, deed)(), look, forgetting=restarts)


@restarting
@pytest.mark.parametrize("key", [None, "k"])
def test_a_first_push_is_whole(failing: FailingServer, key: str | None, restarts: bool) -> None:
    def look(queue: Queue, _: Failure) -> None:
        before = queue.stats()
        queue.push(b"again")
        audit(failing.hw, queue)
        assert [d.value for d in queue.pop(9)] == [b"v"] * before.ready + [b"again"]

    failing.fail_in_turn(
        lambda: failing.hw.queue(f"q-{secrets.token_hex(5)}"),
        lambda queue: queue.push(b"v", dedupe=key),
        look,
        forgetting=restarts,
    )


@restarting
@pytest.mark.parametrize("how", ["dedupe", "producer"])
def test_a_push_that_failed_and_is_repeated_is_there_once(
    failing: FailingServer, how: str, restarts: bool
) -> None:
    def push(case: Case) -> list[str]:
        if how == "producer":
            return case.queue.push_many([b"x", b"y"], producer="p", sequence=7)
        return case.queue.push_many(
            [b"x", b"y", b"x", b"k"], dedupe=["kx", "ky", "kx", "known"], dedupe_ms=LONG_MS
        )

    def look(case: Case, _: Failure) -> None:
        heal(case, restarts)
        assert push(case) == push(case)
        found = [row[0] for row in contents(case.queue)]
        assert (found.count(b"x"), found.count(b"y"), found.count(b"k")) == (1, 1, 0)
        go_on(case)

    failing.fail_in_turn(lambda: cases.make_case(failing.hw), push, look, forgetting=restarts)


@restarting
def test_an_ack_that_failed_and_is_repeated_counts_once(
    failing: FailingServer, restarts: bool
) -> None:
    def look(case: Case, _: Failure) -> None:
        heal(case, restarts)
        case.queue.ack(*case.held)
        assert counts_of(case.hw, case.queue)["acked"] == len(case.held)

    failing.fail_in_turn(
        lambda: cases.make_case(failing.hw),
        lambda case: case.queue.ack(*case.held),
        look,
        forgetting=restarts,
    )


def test_every_call_is_passed_by_one_of_these(failing: FailingServer) -> None:
    trials = (
        *WHOLE.values(),
        *STEPS.values(),
        Trial(cases.nothing, cases.free),
        Trial(cases.nothing, cases.first_push),
        Trial(cases.nothing, lambda case: case.queue.delete()),
        Trial(cases.with_a_bucket_of_the_future, cases.pop(1, LONG_MS)),
        Trial(cases.failed, cases.newest_letters),
    )
    passed = set()
    for prepare, operate in trials:
        case = cases.make_case(failing.hw)
        prepare(case)
        with failing.armed(None) as sites:
            operate(case)
        passed |= set(sites)
    # What takes changes back runs only after something has failed.
    undoing = failing.sites("queue", files="11-undo") | {
        site for site in failing.sites("queue", files="12-changes") if site.command == "HMGET"
    }
    left = failing.sites("queue") - passed - undoing
    assert not left, sorted(map(str, left))
