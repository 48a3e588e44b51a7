"""A redrive or a discard concerns the letters that there are when it begins, and so it ends.

A consumer that fails at once makes new letters of what is redriven, as fast as it is redriven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headwater import Headwater, Queue, Stream, testing
from headwater.kernel.failures import LetterFilter
from headwater.log import topics
from headwater.log.dead_letters import GroupLetters
from headwater.log.handles import GroupHandle, GroupOptions
from headwater.log.topics import TopicGroupHandle, TopicHandle
from headwater.queue.dead_letters import QueueLetters
from headwater.queue.handles import QueueHandle
from headwater.store.call import Operation, Pace
from headwater.testing.clock import AHEAD
from headwater.testing.store import PrivateStore
from headwater.whole_store.letters import move_everywhere
from tests.support.groups import FAR
from tests.support.stepping import handle_of

# More ranges, and more bundles, than one call takes.
RANGES = 300
BUNDLES = 150
ALL = 1_000_000
MOST_MOVES = 10
FILTERS = [None, LetterFilter(min_attempts=0)]


@pytest.fixture
def hw() -> Iterator[PrivateStore]:
    """A store whose clock is set by the test."""
    with testing.store() as store:
        yield store


def beside(hw: Headwater, operation: Operation[Any], happens: Callable[[], object]) -> Any:
    """Run an operation; something else happens after each of its calls that moves letters."""

    def calls() -> Operation[Any]:
        request, moves = next(operation), 0
        while moves < MOST_MOVES:
            reply = yield request
            if getattr(request, "function", "").endswith(("_redrive", "_discard")):
                happens()
                moves += 1
            try:
                request = operation.send(reply)
            except StopIteration as done:
                return done.value
        raise AssertionError(f"it has not ended after {MOST_MOVES} moves")

    return hw.store.run(calls())


class FailingGroup:
    """A group with every second message of a stream among its dead letters; it fails at once."""

    def __init__(self, stream: Stream) -> None:
        self.group = stream.group("g", dead_letters=True)
        self.handle = GroupHandle(handle_of(stream.name), "g", "other")
        stream.write_many([("t", b"%d" % i) for i in range(1, 2 * RANGES + 1)])
        self.group.read(2 * RANGES, ack_ms=FAR)
        self.failed: list[int] = []
        self.group.bury(*range(1, 2 * RANGES, 2))
        self.group.ack((1, 2 * RANGES))

    def fail(self) -> None:
        """Give up all that is redelivered."""
        if taken := [message.offset for message in self.group.read(1000, ack_ms=FAR)]:
            self.group.bury(*taken)
            self.failed += taken


@pytest.mark.parametrize("matching", FILTERS, ids=["all", "filtered"])
def test_a_redrive_of_a_group_beside_a_member_that_fails_at_once_ends(
    hw: Headwater, matching: LetterFilter | None
) -> None:
    failing = FailingGroup(hw.stream("s"))
    redrive = GroupLetters(failing.handle).act("redrive", None, matching, ALL, Pace(None))
    assert beside(hw, redrive, failing.fail) == (RANGES, 0)
    assert sorted(failing.failed) == list(range(1, 2 * RANGES, 2))
    assert failing.group.info().dead == RANGES


@pytest.mark.parametrize("matching", FILTERS, ids=["all", "filtered"])
def test_a_discard_of_a_group_beside_new_letters_ends(
    hw: Headwater, matching: LetterFilter | None
) -> None:
    stream = hw.stream("s")
    failing = FailingGroup(stream)

    def write_and_fail() -> None:
        stream.write_many([("t", b"new")] * 2 * RANGES)
        taken = [message.offset for message in failing.group.read(2 * RANGES, ack_ms=FAR)]
        failing.group.bury(*taken[::2])
        failing.group.ack(*taken[1::2])
        failing.failed += taken[::2]

    discard = GroupLetters(failing.handle).act("discard", None, matching, ALL, Pace(None))
    assert beside(hw, discard, write_and_fail).done == RANGES
    assert [one.origin for one in failing.group.dead(10_000)] == failing.failed


def test_a_redrive_of_a_topic_beside_a_member_that_fails_at_once_ends(hw: Headwater) -> None:
    hw.topic("t", partitions=1).info()
    failing = FailingGroup(hw.stream("t/0"))
    topic = TopicHandle("t", 1, set())
    handle = TopicGroupHandle(topic, "g", "other", GroupOptions(), one_server=True)
    redrive = topics.act(handle, "redrive", None, None, ALL, Pace(None), lambda moved: moved.done)
    assert sum(beside(hw, redrive, failing.fail).values()) == RANGES


def test_a_redrive_of_all_groups_and_queues_beside_those_that_fail_at_once_ends(
    hw: Headwater,
) -> None:
    failing, burying = FailingGroup(hw.stream("s")), FailingQueue(hw.queue("q"))

    def fail() -> None:
        failing.fail()
        burying.fail()

    redrive = move_everywhere("redrive", (), None, Pace(None))
    assert beside(hw, redrive, fail) == (2, RANGES + BUNDLES, 0)


class FailingQueue:
    """A queue all of whose messages are dead letters, each in a bundle; it fails at once."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.handle = QueueHandle(queue.name, set(), "other")
        self.failed: list[str] = []
        self.ids = [queue.push(b"%d" % i) for i in range(BUNDLES)]
        self.fail()
        self.failed = []

    def fail(self) -> None:
        """Give up all that is redelivered."""
        while taken := self.queue.pop(1, ack_ms=FAR):
            self.queue.bury(*taken)
            self.failed += [one.id for one in taken]


@pytest.mark.parametrize("matching", FILTERS, ids=["all", "filtered"])
def test_a_redrive_of_a_queue_beside_a_consumer_that_fails_at_once_ends(
    hw: Headwater, matching: LetterFilter | None
) -> None:
    failing = FailingQueue(hw.queue("mails"))
    redrive = QueueLetters(failing.handle).act("redrive", None, matching, ALL, Pace(None))
    assert beside(hw, redrive, failing.fail) == (BUNDLES, 0)
    assert sorted(failing.failed) == sorted(failing.ids)
    assert failing.queue.stats().dead == BUNDLES


@pytest.mark.parametrize("step_ms", [-10_000, 10_000])
@pytest.mark.parametrize("matching", FILTERS, ids=["all", "filtered"])
def test_a_redrive_of_a_queue_ends_whatever_the_clock_does(
    hw: PrivateStore, matching: LetterFilter | None, step_ms: int
) -> None:
    hw.clock.advance(600_000)
    failing = FailingQueue(hw.queue("mails"))

    # Those that fail again are before, or long after, those that there were.
    hw.store.command("INCRBY", AHEAD, step_ms)
    redrive = QueueLetters(failing.handle).act("redrive", None, matching, ALL, Pace(None))
    assert beside(hw, redrive, failing.fail) == (BUNDLES, 0)
    assert sorted(failing.failed) == sorted(failing.ids)


@pytest.mark.parametrize("matching", FILTERS, ids=["all", "filtered"])
def test_a_discard_of_a_queue_beside_new_letters_ends(
    hw: Headwater, matching: LetterFilter | None
) -> None:
    failing = FailingQueue(hw.queue("mails"))
    new: list[str] = []

    def push_and_fail() -> None:
        new.extend(failing.queue.push_many([b"new"] * 100))
        failing.fail()

    discard = QueueLetters(failing.handle).act("discard", None, matching, ALL, Pace(None))
    assert beside(hw, discard, push_and_fail).done == BUNDLES
    assert sorted(one.id for one in failing.queue.dead(100_000)) == sorted(new)
