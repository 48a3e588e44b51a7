"""Queues while any call of a server function fails: all of an operation happens, or nothing.

Every case is tried with each of its calls failing, once or from then on. Afterwards the counts fit
what is there, nothing is lost or twice, and a client that meets no failure repeats the operation.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from headwater import Delivery, Headwater, Queue
from headwater.store.call import Call
from tests.support.failing_calls import FailingServer, Failure, Site
from tests.support.queue_books import audit, contents, counts_of, keys_of, queue_key
from tests.support.watch import let_pass

pytestmark = pytest.mark.fault
LONG_MS = 600_000
# What only runs after something else has failed.
UNDO = "12-changes.lua"


@pytest.fixture(scope="module")
def failing() -> Iterator[FailingServer]:
    with FailingServer() as server:
        yield server


@pytest.fixture(scope="module")
def failed() -> set[Site]:
    """The sites that failed in any case; the last test sees that it was every one."""
    return set()


@dataclass
class Case:
    """A queue in which there is something of everything."""

    hw: Headwater
    queue: Queue
    held: list[Delivery] = field(default_factory=list)
    before: list[tuple[Any, ...]] = field(default_factory=list)

    def call(self, function: str, *args: Any) -> Any:
        return self.hw.store.ask(Call(function, queue_key(self.queue), args, repeatable=True))

    def wait(self, name: str, count: int = 1, known: str = "0", boxed: str = "") -> Any:
        """Do what a blocked consumer does each second, without blocking."""
        waiter = f"{count}:{LONG_MS}:{name}"
        return self.call("hw_queue_pop", count, LONG_MS, waiter, 60_000, known, boxed)


def make(hw: Headwater) -> Case:
    """Fill a queue: lists with single and packed messages, and every set."""
    queue = hw.queue(f"q-{secrets.token_hex(5)}")
    case = Case(hw, queue)
    queue.configure(max_attempts=2)
    # Dead letters, several in a bundle; then what is redelivered, due and later.
    queue.push_many([b"dead-%d" % i for i in range(3)])
    queue.nack(*queue.pop(9, ack_ms=LONG_MS))
    queue.nack(*queue.pop(9, ack_ms=LONG_MS))
    queue.push_many([b"retry-%d" % i for i in range(3)], priority=3)
    queue.nack(*queue.pop(9, ack_ms=LONG_MS))
    queue.push(b"rests", priority=9)
    queue.nack(*queue.pop(1, ack_ms=LONG_MS), delay_ms=LONG_MS)
    queue.push_many([b"late-%d" % i for i in range(2)], delay_ms=LONG_MS)
    queue.push_many([b"due-%d" % i for i in range(2)], delay_ms=1)
    queue.push_many([b"held-%d" % i for i in range(4)], priority=9)
    queue.push_many([b"more-%d" % i for i in range(2)], priority=8)
    case.held = queue.pop(4, ack_ms=LONG_MS)
    case.held += queue.pop(2, ack_ms=LONG_MS)
    queue.push_many([b"lapsed-%d" % i for i in range(2)], priority=9)
    queue.pop(2, ack_ms=1)
    queue.push(b"mortal", ttl_ms=1, priority=7)
    queue.push_many([b"one-%d" % i for i in range(3)])
    queue.push_many([b"packed-%02d" % i for i in range(25)])
    queue.push(b"keyed", dedupe="known")
    let_pass(hw, 3)
    case.before = contents(queue)
    return case


def go_on(case: Case) -> None:
    """Let a client take everything out that can be: each message once, and the counts end at 0."""
    hw, queue = case.hw, case.queue
    audit(hw, queue)
    queue.resume()
    expected = sorted(
        row[0] for row in contents(queue) if row[1] == "ready" and row[0] != b"mortal"
    )
    taken: list[Delivery] = []
    while some := queue.pop(7, ack_ms=LONG_MS):
        taken += some
    # What was reserved for a waiter comes later, and is counted where it lies until then.
    assert sorted(d.value for d in taken) == expected
    assert queue.ack(*taken) == len(taken)
    audit(hw, queue)
    facts = queue.stats()
    assert (facts.ready, facts.dead) == (0, queue.discard())
    audit(hw, queue)
    assert queue.delete()
    boxes = {key for key in keys_of(hw, queue) if key.startswith(":box:")}
    assert keys_of(hw, queue) == boxes, "a box goes by itself"


def all_or_nothing(
    failing: FailingServer,
    failed: set[Site],
    operate: Callable[[Case], Any],
    prepare: Callable[[Case], Any] = lambda _: None,
    check: Callable[[Case], Any] = lambda _: None,
) -> None:
    """Run an operation with every call failing; it is done, or as if it never was."""
    clean = make(failing.hw)
    prepare(clean)
    clean.before = contents(clean.queue)
    operate(clean)
    done = contents(clean.queue)
    audit(failing.hw, clean.queue)

    def fresh() -> Case:
        case = make(failing.hw)
        prepare(case)
        case.before = contents(case.queue)
        assert case.before == clean.before
        return case

    def look(case: Case, _: Failure) -> None:
        # A call that may write, by somebody who may: it takes back what is unfinished.
        case.queue.extend(*case.held, ack_ms=LONG_MS)
        audit(case.hw, case.queue)
        assert contents(case.queue) in (clean.before, done)
        check(case)
        go_on(case)

    failed |= failing.fail_in_turn(fresh, operate, look)


# ── Pushing ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "options",
    [{}, {"delay_ms": LONG_MS}, {"priority": 5}, {"ttl_ms": LONG_MS, "priority": -5}],
)
@pytest.mark.parametrize("count", [1, 30])
def test_a_push_is_whole(
    failing: FailingServer, failed: set[Site], options: dict[str, Any], count: int
) -> None:
    some = [b"new-%d" % i for i in range(count)]
    all_or_nothing(failing, failed, lambda case: case.queue.push_many(some, **options))


def test_a_push_of_several_steps_is_whole(failing: FailingServer, failed: set[Site]) -> None:
    some = [b"new-%d" % i for i in range(1500)]

    def ask_for_one(case: Case) -> None:
        case.queue.push(b"first", priority=100)
        case.queue.pop(1)

    all_or_nothing(failing, failed, lambda case: case.queue.push_many(some), ask_for_one)


def test_a_first_push_is_whole(failing: FailingServer, failed: set[Site]) -> None:
    def look(queue: Queue, _: Failure) -> None:
        before = queue.stats()
        queue.push(b"again")
        audit(failing.hw, queue)
        assert [d.value for d in queue.pop(9)] == [b"v"] * before.ready + [b"again"]

    failed |= failing.fail_in_turn(
        lambda: failing.hw.queue(f"q-{secrets.token_hex(5)}"), lambda queue: queue.push(b"v"), look
    )


@pytest.mark.parametrize("how", ["dedupe", "producer"])
def test_a_push_that_failed_and_is_repeated_is_there_once(
    failing: FailingServer, failed: set[Site], how: str
) -> None:
    def push(case: Case) -> list[str]:
        if how == "producer":
            return case.queue.push_many([b"x", b"y"], producer="p", sequence=7)
        return case.queue.push_many(
            [b"x", b"y", b"x", b"k"], dedupe=["kx", "ky", "kx", "known"], dedupe_ms=LONG_MS
        )

    def repeat(case: Case) -> None:
        assert push(case) == push(case)
        found = [row[0] for row in contents(case.queue)]
        assert (found.count(b"x"), found.count(b"y"), found.count(b"k")) == (1, 1, 0)

    all_or_nothing(failing, failed, push, check=repeat)


def test_old_dedupe_keys_are_forgotten(failing: FailingServer, failed: set[Site]) -> None:
    def prepare(case: Case) -> None:
        case.queue.push_many([b"a", b"b"], dedupe=["a", "b"], dedupe_ms=1)
        let_pass(case.hw, 2)

    all_or_nothing(
        failing, failed, lambda case: case.queue.push(b"c", dedupe="c", dedupe_ms=5), prepare
    )


# ── Taking, and what a consumer does then ────────────────────────────────────────────────────


@pytest.mark.parametrize("ack_ms", [None, LONG_MS])
@pytest.mark.parametrize("count", [1, 20, 1000])
def test_a_pop_is_whole(
    failing: FailingServer, failed: set[Site], ack_ms: int | None, count: int
) -> None:
    got: dict[str, list[Delivery]] = {}

    def pop(case: Case) -> None:
        got[case.queue.name] = []
        got[case.queue.name] = case.queue.pop(count, ack_ms=ack_ms)

    def nothing_is_lost(case: Case) -> None:
        taken = got[case.queue.name]
        there = [row[0] for row in contents(case.queue)]
        gone = sorted(d.value for d in taken) if ack_ms is None else []
        # The one that outlived its time may go with the pop.
        assert sorted({*there, *gone, b"mortal"}) == sorted(
            {*(row[0] for row in case.before), b"mortal"}
        )
        assert len(there) + len(gone) in (len(case.before), len(case.before) - 1)

    all_or_nothing(failing, failed, pop, check=nothing_is_lost)


@pytest.mark.parametrize("some", [slice(None), slice(1, 3)])
@pytest.mark.parametrize("deed", ["ack", "nack", "release", "extend"])
def test_what_a_consumer_says_counts_as_a_whole(
    failing: FailingServer, failed: set[Site], deed: str, some: slice
) -> None:
    options = {"ack_ms": 2 * LONG_MS} if deed == "extend" else {}

    def operate(case: Case) -> None:
        getattr(case.queue, deed)(*case.held[some], **options)

    def repeat(case: Case) -> None:
        acked = counts_of(case.hw, case.queue)["acked"]
        count = getattr(case.queue, deed)(*case.held[some], **options)
        if deed == "ack":
            assert counts_of(case.hw, case.queue)["acked"] == acked + count
            assert acked + count == len(case.held[some])

    all_or_nothing(failing, failed, operate, check=repeat)
