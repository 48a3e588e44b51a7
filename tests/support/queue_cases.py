"""A queue in which there is something of everything, and every operation that can be done to it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headwater import Delivery, Headwater, Limits, Queue
from headwater.kernel.failures import Failure
from headwater.queue.dead_letters import QueueLetters
from headwater.queue.handles import QueueHandle
from headwater.store.call import Call, Pace
from tests.support.queue_books import NO_NAME, contents, queue_key
from tests.support.watch import let_pass

LONG_MS = 600_000
Deed: TypeAlias = "Callable[[Case], Any]"


@dataclass
class Case:
    """A queue, what of it is with a consumer, and what was in it before an operation."""

    hw: Headwater
    queue: Queue
    held: list[Delivery] = field(default_factory=list)
    before: list[tuple[Any, ...]] = field(default_factory=list)
    taken: list[Delivery] = field(default_factory=list)

    def call(self, function: str, *args: Any) -> Any:
        return self.hw.store.ask(Call(function, queue_key(self.queue), args, repeatable=True))

    def wait(self, name: str, count: int = 1, known: str = "0", boxed: str = "") -> Any:
        """Do what a blocked consumer does each second, without blocking."""
        waiter = f"{count}:{LONG_MS}:{name}"
        return self.call("hw_queue_pop", count, LONG_MS, waiter, 60_000, known, boxed)

    def leave(self, name: str, count: int = 1) -> Any:
        return self.call("hw_queue_leave", f"{count}:{LONG_MS}:{name}")


def make_case(hw: Headwater) -> Case:
    """Fill a queue: lists with single and packed messages, and every set."""
    queue = hw.queue(f"q-{secrets.token_hex(5)}")
    case = Case(hw, queue)
    queue.configure(max_attempts=2)
    # Dead letters, several in a bundle; then what is redelivered, due and later.
    queue.push_many([b"dead-%d" % i for i in range(3)])
    for _ in range(2):
        queue.nack(*queue.pop(9, ack_ms=LONG_MS))
    queue.push_many([b"retry-%d" % i for i in range(3)])
    queue.nack(*queue.pop(25, ack_ms=LONG_MS))
    # A pop asked for 25 before: bundles in the list are of so many.
    queue.push_many([b"one-%d" % i for i in range(3)])
    queue.push_many([b"packed-%02d" % i for i in range(25)])
    queue.push(b"rests", priority=9)
    queue.nack(*queue.pop(1, ack_ms=LONG_MS), delay_ms=LONG_MS)
    queue.push_many([b"late-%d" % i for i in range(2)], delay_ms=LONG_MS)
    queue.push_many([b"held-%d" % i for i in range(4)], priority=9)
    queue.push_many([b"more-%d" % i for i in range(2)], priority=9)
    case.held = queue.pop(4, ack_ms=LONG_MS) + queue.pop(2, ack_ms=LONG_MS)
    queue.push(b"keyed", dedupe="known")
    # A pop would move what is due, a push does not: nothing below depends on how long it takes.
    queue.push_many([b"lapsed-%d" % i for i in range(2)], priority=9)
    queue.pop(2, ack_ms=1)
    queue.push_many([b"due-%d" % i for i in range(2)], delay_ms=1)
    queue.push(b"mortal", ttl_ms=1, priority=9)
    let_pass(hw, 3)
    case.before = contents(queue)
    return case


def fail(some: slice, delay_ms: int | None) -> Deed:
    """Report failures of what is held; without a delay they are given up."""

    def deed(case: Case) -> Any:
        failures = [Failure(held, ValueError("no"), delay_ms) for held in case.held[some]]
        return case.queue.fail(*failures)

    return deed


def failed(case: Case) -> None:
    """Some messages have failed and are redelivered, and others are dead letters with a cause."""
    fail(slice(0, 2), LONG_MS)(case)
    fail(slice(2, 5), None)(case)


def failed_twice(case: Case) -> None:
    """What failed before is held again, for the last time."""
    fail(slice(0, 6), 0)(case)
    case.held = case.queue.pop(6, ack_ms=LONG_MS)


def nothing(_: Case) -> None:
    """Leave the queue as it is."""


# ── Preparing ────────────────────────────────────────────────────────────────────────────────


def ask_for_one(case: Case) -> None:
    case.queue.push(b"", priority=100)
    case.queue.pop(1)


def empty(case: Case) -> None:
    """Take out what is ready, so that consumers wait."""
    while case.queue.pop(100):
        pass


def two_wait(case: Case) -> None:
    empty(case)
    case.wait("first", 2)
    case.wait("second", 2)


def waits_are_due(case: Case) -> None:
    """It is time to save how long messages waited."""
    let_pass(case.hw, 100)


def a_silent_one_waits(case: Case) -> None:
    empty(case)
    case.wait("silent")
    for part in ("waiters", "looks"):
        case.hw.store.command("ZADD", f"{queue_key(case.queue)}:{part}", 1, "1::gone")


def served(case: Case) -> None:
    two_wait(case)
    case.queue.push_many([b"a", b"b"])


def poked(case: Case) -> None:
    two_wait(case)
    case.queue.push(b"soon", delay_ms=2)
    let_pass(case.hw, 3)


def limit(limits: Limits) -> Deed:
    return lambda case: case.queue.limit(limits)


def waits_for_a_slot(case: Case) -> None:
    """As many messages are held as may be, others are ready, and a consumer waits."""
    limit(Limits(max_in_flight=len(case.held)))(case)
    case.wait("first", 2)


def without_tokens(case: Case) -> None:
    """Nothing is delivered for hours, though there is something."""
    limit(Limits(rate="1/h burst 2"))(case)
    case.held += case.queue.pop(2, ack_ms=LONG_MS)
    case.before = contents(case.queue)


def vary(case: Case) -> None:
    """Give messages of one bundle deadlines of their own, one of which is over."""
    case.queue.extend(*case.held[1:3], ack_ms=1)
    let_pass(case.hw, 2)


def ack_one(case: Case) -> None:
    case.queue.ack(case.held[0])


def damage(case: Case) -> None:
    """Damage a text in a list, one of a bundle, a name, and a message after a partial ack."""
    own = queue_key(case.queue)
    command = case.hw.store.command
    command("LSET", f"{own}:ready:0", 0, b"not a message")
    command("ZADD", f"{own}:retry:0", 1, NO_NAME)
    ack_one(case)
    number = case.held[0].receipt.split(":")[0]
    (text,) = command("HGET", f"{own}:bundles", number)
    command("HSET", f"{own}:bundles", number, text.replace(b"held-2", b"").replace(b"m", b"x", 1))


def change_a_value(case: Case) -> None:
    """Change values in a list behind their checksums."""
    key = f"{queue_key(case.queue)}:ready:0"
    texts = case.hw.store.command("LRANGE", key, 0, -1)[0]
    for place, text in enumerate(texts):
        case.hw.store.command("LSET", key, place, text.replace(b"-1", b"-7", 1))


def pause(case: Case) -> None:
    two_wait(case)
    case.queue.pause()
    case.queue.push(b"v")


def keys_that_are_over(case: Case) -> None:
    case.queue.push_many([b"a", b"b"], dedupe=["a", "b"], dedupe_ms=1)
    let_pass(case.hw, 2)


def producer(case: Case) -> None:
    case.queue.push_many([b"p"], producer="p", sequence=1)


# ── Operations ───────────────────────────────────────────────────────────────────────────────


def push_many(count: int, **options: Any) -> Deed:
    some = [b"new-%d" % i for i in range(count)]
    return lambda case: case.queue.push_many(some, **options)


def pop(count: int, ack_ms: int | None) -> Deed:
    def operate(case: Case) -> None:
        case.taken = []
        case.taken = case.queue.pop(count, ack_ms=ack_ms)

    return operate


def settle(deed: str, some: slice, **options: Any) -> Deed:
    return lambda case: getattr(case.queue, deed)(*case.held[some], **options)


def keep(case: Case) -> None:
    case.call("hw_queue_keep", 0)


def look(case: Case) -> None:
    case.queue.stats()
    contents(case.queue)
    case.queue.peek(3)
    for part in ("unacked", "retry"):
        case.call("hw_queue_page", part, 9, b"1 x", 1, 100)
    case.call("hw_queue_page", "ready", 0, "1" * 16, 2, 100)


def fetch(case: Case) -> None:
    """Fetch what was reserved, as a consumer does that was woken."""
    box = f"{queue_key(case.queue)}:box:2:{LONG_MS}:first"
    (boxed,) = case.hw.store.command("LPOP", box)
    case.wait("first", 2, "1", boxed or "")


def first_push(case: Case) -> None:
    case.queue.delete()
    case.queue.push(b"v", dedupe="k")


def promote(case: Case) -> None:
    case.queue.promote(case.queue.peek(100, state="delayed"))


def letters(deed: str, count: int) -> Deed:
    return lambda case: getattr(case.queue, deed)(case.queue.dead()[:count])


def free(case: Case) -> None:
    """Free dedupe keys of a queue that was purged by a client that then died."""
    generation = case.call("hw_queue_purge", "messages")[2]
    while case.call("hw_queue_free", generation):
        pass


def handle_of(case: Case) -> QueueHandle:
    return QueueHandle(case.queue.name, set(), "m")


def with_a_bucket_of_the_future(case: Case) -> None:
    """The clock was set back since tokens were spent."""
    without_tokens(case)
    case.hw.store.command("HSET", queue_key(case.queue), "bucket", 2**52)


def newest_letters(case: Case) -> None:
    case.hw.store.run(QueueLetters(handle_of(case)).page("", 10, newest=True))


def discard_all(case: Case) -> None:
    case.hw.store.run(QueueLetters(handle_of(case)).act("discard", None, None, 10, Pace()))
