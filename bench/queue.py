"""A queue against the server's own lists, and against its own backlog."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import redis

import headwater
from bench.harness import Row, interleave, rate, server, socket_url

MESSAGES = 1000
TAKEN = 50
VALUE = b"x" * 130
LONG_MS = 3_600_000


@dataclass
class Place:
    """A server, our client and a plain one."""

    native: redis.Redis
    hw: headwater.Headwater
    rounds: int

    def ours(self, ack_ms: int | None, settle: bool = False, together: bool = True) -> float:
        """Take 1000 messages, pushed together or one by one, 50 at a time; messages a second."""
        queue = self.hw.queue("taken" if together else "taken-singly")
        for part in [[VALUE] * MESSAGES] if together else [[VALUE]] * MESSAGES:
            queue.push_many(part)

        def work() -> None:
            for _ in range(MESSAGES // TAKEN):
                taken = queue.pop(TAKEN, ack_ms=ack_ms)
                if settle:
                    queue.ack(*taken)

        found = rate(MESSAGES, work)
        queue.purge()
        return found

    def lists(self, take: Callable[[], object], together: bool = True) -> float:
        """The same from a list of the server's."""
        for part in [[VALUE] * MESSAGES] if together else [[VALUE]] * MESSAGES:
            self.native.rpush("list", *part)

        def work() -> None:
            for _ in range(MESSAGES // TAKEN):
                take()

        return rate(MESSAGES, work)


def one_by_one(client: redis.Redis) -> None:
    for _ in range(TAKEN):
        client.lpop("list")


def pipelined(client: redis.Redis) -> None:
    pipe = client.pipeline(transaction=False)
    for _ in range(TAKEN):
        pipe.lpop("list")
    pipe.execute()


def at_once(client: redis.Redis) -> None:
    client.lpop("list", TAKEN)


def taking(place: Place) -> list[Row]:
    """Measure 1000 messages, 50 at a time, against three ways to take them from a list."""
    rows = []
    for title, ack_ms, settle, theirs, least, aim in (
        ("with ack / 50 LPOPs", LONG_MS, False, one_by_one, 3.8, 10),
        ("with ack / pipelined LPOPs", LONG_MS, False, pipelined, 1.9, 3),
        ("and acked / pipelined LPOPs", LONG_MS, True, pipelined, 1, 1.9),
        ("without ack / LPOP key 50", None, False, at_once, 0.3, 0.7),
    ):
        for pushed, together in (("in one call", True), ("one by one", False)):
            if not together and theirs is one_by_one:
                continue
            ours = partial(place.ours, ack_ms, settle, together)
            peer = partial(place.lists, partial(theirs, place.native), together)
            a, b = interleave(ours, peer, place.rounds * 3)
            name = f"1000 messages pushed {pushed}, 50 at a time, {title}, messages/s"
            # How messages were pushed makes no difference to a list, so that row has no goal.
            goals = (least, aim) if together else (0, 0)
            rows.append(Row.of(name, "off", a, b, *goals))
    return rows


def fill(queue: headwater.Queue, count: int, *, due: bool) -> None:
    """Leave as many messages delayed, and as many unacknowledged; long to come, or all due."""
    step = min(count, 5000)
    # Nothing comes due before all of it is there.
    ends = time.monotonic() + (1 + count / 40_000 if due else LONG_MS / 1000)

    def left_ms() -> int:
        return max(1, int((ends - time.monotonic()) * 1000))

    for _ in range(count // step):
        queue.push_many([VALUE] * step)
        queue.pop(step, ack_ms=left_ms())
        queue.push_many([VALUE] * step, delay_ms=left_ms())
    if due:
        time.sleep(max(0, ends - time.monotonic()))


def backlog(place: Place, count: int) -> list[Row]:
    """Measure a pop beside a large backlog, against one of a queue that has none."""
    rows = []
    names = itertools.count()
    for title, due in (("that wait", False), ("that are due", True)):
        full, bare = place.hw.queue(f"full-{next(names)}"), place.hw.queue(f"bare-{next(names)}")
        fill(full, count, due=due)

        a, b = interleave(
            partial(pop_us, full, fresh=not due),
            partial(pop_us, bare, fresh=True),
            place.rounds * 3,
        )
        name = f"pop of 50 with {count:,} delayed and {count:,} unacked {title} / none, us"
        # What is due costs what it costs to deliver again; the backlog must not add to that.
        least = 2 if due else 1.2
        aim = 1.2 if due else 1.1
        rows.append(Row.of(name, "off", a, b, least, aim, False))
        full.delete()
        bare.delete()
    return rows


def pop_us(queue: headwater.Queue, *, fresh: bool) -> float:
    """Take 1000 messages 50 at a time, fresh or as they lie there; microseconds a pop."""
    if fresh:
        queue.push_many([VALUE] * MESSAGES)

    def work() -> None:
        for _ in range(MESSAGES // TAKEN):
            queue.pop(TAKEN, ack_ms=LONG_MS)

    return 1e6 / rate(MESSAGES // TAKEN, work)


def wake_up(place: Place, samples: int) -> Row:
    """Measure the way from a push to a blocked consumer, against a native blocked pop."""
    ours = place.hw.queue("woken")

    def latency(push: Callable[[], object], pop: Callable[[], object]) -> float:
        took = []
        for _ in range(samples):
            with ThreadPoolExecutor(1) as pool:
                woken = pool.submit(lambda: (pop(), time.perf_counter())[1])
                time.sleep(0.002)
                began = time.perf_counter()
                push()
                took.append((woken.result() - began) * 1e6)
        return statistics.median(took)

    a, b = interleave(
        lambda: latency(lambda: ours.push(VALUE), lambda: ours.pop(block_ms=5000)),
        lambda: latency(
            lambda: place.native.rpush("woken", VALUE), lambda: place.native.blpop("woken", 5)
        ),
        max(1, place.rounds // 3),
    )
    name = "push to blocked pop / RPUSH to BLPOP, us"
    return Row.of(name, "off", a, b, 5, 2, False)


def run(rounds: int, count: int) -> list[Row]:
    """Measure every row; ``count`` is the size of the backlog."""
    with server("off") as native, headwater.connect(socket_url(native)) as hw:
        place = Place(native, hw, rounds)
        rows = taking(place)
        rows.append(wake_up(place, 50))
        rows += backlog(place, count)
    return rows
