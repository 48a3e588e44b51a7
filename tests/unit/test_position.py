"""What a position tells the log, when several processes begin at the same moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sqlalchemy import create_engine

from headwater.log.handles import StreamHandle
from headwater.outbox import checkpoints
from headwater.outbox.plan import Ask, ConsumerPlan, Execute, Fetch, Transact, Work
from headwater.outbox.position import ConsumerPosition

# What a position looks at in the info of a stream.
INFO = SimpleNamespace(first=1, last=20)


def drive(work: Work[Any], stored: list[int | None]) -> tuple[Any, list[Any]]:
    """Run work against a stream that ends at 20; returns its result, and what the log was sent."""
    told: list[Any] = []
    reply: Any = None
    try:
        while True:
            request = work.send(reply)
            if isinstance(request, Transact):
                reply = transact(request.work, stored)
            elif isinstance(request, Ask):
                call: Any = request.operation.send(None)
                request.operation.close()
                reply = INFO if call.function == "hw_stream_info" else None
                if call.function == "hw_stream_reader":
                    told.append(call.args[1])
            else:
                reply = None
    except StopIteration as done:
        return done.value, told


def transact(work: Work[Any], stored: list[int | None]) -> Any:
    """Run work in a database that has the positions that are given, and nothing else."""
    reply: Any = None
    try:
        while True:
            request = work.send(reply)
            loads = isinstance(request, Fetch) and request.statement is checkpoints.LOAD
            reply = stored.pop(0) if loads else None
    except StopIteration as done:
        return done.value


def position(start: Any) -> ConsumerPosition:
    plan = ConsumerPlan("c", create_engine("sqlite://"), 10, start, "stop", 1, 0, "stop", False)
    return ConsumerPosition(plan, StreamHandle("s", {"s"}))


def test_a_new_consumer_holds_everything_until_it_knows_where_the_first_message_is() -> None:
    assert drive(position("first").look_up(), [None, 1]) == (1, [1])
    assert drive(position("last").look_up(), [None, 21]) == (21, [21])


def test_the_second_to_begin_reports_where_the_first_began() -> None:
    """It had told a later position: retention must not pass what the first still needs."""
    assert drive(position("last").look_up(), [None, 11]) == (11, [21, 11])


def test_a_position_that_somebody_moved_back_is_reported() -> None:
    place = position("first")
    assert drive(place.look_up(), [15]) == (15, [15])
    place.next = None
    assert drive(place.look_up(), [15]) == (15, [])
    place.next = None
    assert drive(place.look_up(), [4]) == (4, [4])


def test_a_position_is_reported_once() -> None:
    place = position("first")
    drive(place.look_up(), [15])
    place.next = 30
    assert drive(place.report(), [])[1] == [30]
    assert drive(place.report(), [])[1] == []
    place.next = 31
    assert drive(place.report(60.0), [])[1] == [], "not so soon again"


class Frozen:
    """A time source that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


def test_time_comes_from_the_source_that_was_given() -> None:
    frozen = Frozen()
    plan = ConsumerPlan(
        *("c", create_engine("sqlite://"), 10, "first", "stop", 1, 0, "stop", False, frozen)
    )
    place = ConsumerPosition(plan, StreamHandle("s", {"s"}))
    moved = place.move(1, 5).send(None)
    assert isinstance(moved, Execute)
    assert moved.values["now_ms"] == 1_000_000_000
    assert drive(place.look_up(), [15]) == (15, [15])
    place.doubt(2.0)
    assert place.next == 15
    frozen.now += 2
    place.doubt(2.0)
    assert place.next is None
