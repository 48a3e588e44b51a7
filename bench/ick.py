"""Dirty lists against plain sorted sets, through redis-py with hiredis, on the same server."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any, TypeAlias

import headwater
from bench.harness import Pair, Row, interleave, rate, server

Dirty: TypeAlias = headwater.Ick | headwater.IckChannel

MEMBERS = 10_000
ROUND = 100
ROUNDS = 50


def scores(size: int, first: int = 0) -> dict[str, float]:
    """Return documents with times at which they became dirty, as an indexer would."""
    return {f"document-{i:09d}": 1.7e9 + i * 0.25 for i in range(first, first + size)}


class Icks(Pair):
    """The pair of a dirty list and a sorted set."""

    def fill(self, dirty: Dirty, size: int) -> str:
        """Give a list and a sorted set the same members; returns the key of the set."""
        key = self.name()
        for first in range(0, size, MEMBERS):
            some = scores(min(MEMBERS, size - first), first)
            dirty.add(some)
            self.peer.zadd(key, some)
        return key

    def compare(
        self, name: str, least: float, aim: float, dirty: Dirty, work: Callable[[], None]
    ) -> Row:
        """Compare rounds of work on a list with those on a sorted set of the same members."""
        key = self.fill(dirty, 2 * self.rounds * ROUND * ROUNDS)

        def plain() -> None:
            for _ in range(ROUNDS):
                batch: Any = self.peer.zrange(key, 0, ROUND - 1, withscores=True)
                if self.peer.zrem(key, *(member for member, _ in batch)) != ROUND:
                    raise AssertionError("a round came out short")

        a, b = interleave(
            lambda: rate(ROUND * ROUNDS, work), lambda: rate(ROUND * ROUNDS, plain), self.rounds
        )
        dirty.delete()
        self.peer.unlink(key)
        return Row.of(f"{name} of 100 / ZRANGE + ZREM, members/s", self.fsync, a, b, least, aim)


def add(pair: Icks) -> Row:
    some = scores(MEMBERS)

    def ours() -> float:
        ick = pair.ours.ick(pair.name())
        figure = rate(MEMBERS, lambda: ick.add(some))
        ick.delete()
        return figure

    def plain() -> float:
        key = pair.name()
        figure = rate(MEMBERS, lambda: pair.peer.zadd(key, some))
        pair.peer.unlink(key)
        return figure

    a, b = interleave(ours, plain, pair.rounds)
    name = "Ick.add of 10,000 in one call / ZADD, members/s"
    return Row.of(name, pair.fsync, a, b, 0.5, 1)


def reserve_commit(pair: Icks) -> Row:
    ick = pair.ours.ick(pair.name())
    # A reserve is a write, which ZRANGE is not: two syncs against one. Exchange needs one.
    return pair.compare("Ick.reserve + commit", 0.5, 0.8, ick, lambda: our_rounds(ick))


def channel(pair: Icks) -> Row:
    """One consumer of a channel with one shard: what leases, generations and fairness cost."""
    dirty = pair.ours.ick_channel(pair.name(), 1)

    def work() -> None:
        for _ in range(ROUNDS):
            if dirty.commit(dirty.reserve(ROUND)) != ROUND:
                raise AssertionError("a round came out short")

    return pair.compare("IckChannel.reserve + commit", 0.2, 0.4, dirty, work)


def exchange(pair: Icks) -> Row:
    ick, done = pair.ours.ick(pair.name()), list[str | bytes]()

    def work() -> None:
        for _ in range(ROUNDS):
            done[:] = [member for member, _ in ick.exchange(ROUND, *done)]

    return pair.compare("Ick.exchange", 0.5, 1, ick, work)


def our_rounds(ick: headwater.Ick, rounds: int = ROUNDS) -> None:
    for _ in range(rounds):
        batch = ick.reserve(ROUND)
        if ick.commit(*(member for member, _ in batch)) != ROUND:
            raise AssertionError("a round came out short")


def growth(pair: Icks, small: int, large: int) -> Row:
    """The same work on a small and on a large Ick: it must not depend on how much there is."""
    icks = {size: pair.ours.ick(pair.name()) for size in (small, large)}
    for size, ick in icks.items():
        pair.fill(ick, size)
    fresh = count(large, ROUND)

    def work(ick: headwater.Ick) -> float:
        some = [scores(ROUND, next(fresh)) for _ in range(ROUNDS)]

        def rounds() -> None:
            for part in some:
                ick.add(part)
                our_rounds(ick, 1)

        return timed(rounds)

    a, b = interleave(lambda: work(icks[large]), lambda: work(icks[small]), pair.rounds)
    for ick in icks.values():
        ick.delete()
    name = f"Ick.add, reserve, commit of 100 among {large:,} / {small:,} members, us"
    return Row.of(name, pair.fsync, a, b, 1.5, 1.1, False)


def timed(work: Callable[[], object]) -> float:
    """Return how long each of so many rounds took, in us."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) / ROUNDS * 1e6


def run(rounds: int, large: int) -> list[Row]:
    """Measure every row."""
    rows: list[Row] = []
    for fsync in ("off", "always"):
        with server(fsync) as plain:
            pair = Icks(plain, fsync, rounds)
            rows += [add(pair), reserve_commit(pair), exchange(pair)]
            if fsync == "off":
                rows.append(channel(pair))
                rows.append(growth(pair, max(ROUND, large // 100), large))
            pair.ours.close()
    return rows
