"""Dirty lists against plain sorted sets, through redis-py with hiredis, on the same server."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any

import headwater
from bench.harness import Pair, Row, interleave, rate, server

MEMBERS = 10_000
ROUND = 100
ROUNDS = 50


def scores(size: int, first: int = 0) -> dict[str, float]:
    """Return documents with times at which they became dirty, as an indexer would."""
    return {f"document-{i:09d}": 1.7e9 + i * 0.25 for i in range(first, first + size)}


class Icks(Pair):
    """The pair of an Ick and a sorted set."""

    def fill(self, size: int) -> tuple[headwater.Ick, str]:
        """Return an Ick and a sorted set with the same members."""
        ick, key = self.ours.ick(self.name()), self.name()
        for first in range(0, size, MEMBERS):
            ick.add(scores(min(MEMBERS, size - first), first))
            self.peer.zadd(key, scores(min(MEMBERS, size - first), first))
        return ick, key


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
    ick, key = pair.fill(2 * pair.rounds * ROUND * ROUNDS)

    def ours() -> float:
        return rate(ROUND * ROUNDS, lambda: our_rounds(ick))

    def plain() -> float:
        return rate(ROUND * ROUNDS, lambda: plain_rounds(pair, key))

    a, b = interleave(ours, plain, pair.rounds)
    ick.delete()
    pair.peer.unlink(key)
    name = "Ick.reserve + commit of 100 / ZRANGE + ZREM, members/s"
    # A reserve is a write, which ZRANGE is not: two syncs against one. Exchange needs one.
    return Row.of(name, pair.fsync, a, b, 0.5, 0.8)


def channel(pair: Icks) -> Row:
    """One consumer of a channel with one shard: what leases, generations and fairness cost."""
    dirty, key = pair.ours.ick_channel(pair.name(), 1), pair.name()
    size = 2 * pair.rounds * ROUND * ROUNDS
    for first in range(0, size, MEMBERS):
        some = scores(min(MEMBERS, size - first), first)
        dirty.add(some)
        pair.peer.zadd(key, some)

    def ours() -> float:
        def work() -> None:
            for _ in range(ROUNDS):
                if dirty.commit(dirty.reserve(ROUND)) != ROUND:
                    raise AssertionError("a round came out short")

        return rate(ROUND * ROUNDS, work)

    def plain() -> float:
        return rate(ROUND * ROUNDS, lambda: plain_rounds(pair, key))

    a, b = interleave(ours, plain, pair.rounds)
    dirty.delete()
    pair.peer.unlink(key)
    name = "IckChannel.reserve + commit of 100 / ZRANGE + ZREM, members/s"
    return Row.of(name, pair.fsync, a, b, 0.2, 0.4)


def exchange(pair: Icks) -> Row:
    ick, key = pair.fill(2 * pair.rounds * ROUND * ROUNDS)
    done: list[str | bytes] = []

    def ours() -> float:
        def work() -> None:
            for _ in range(ROUNDS):
                done[:] = [member for member, _ in ick.exchange(ROUND, *done)]

        return rate(ROUND * ROUNDS, work)

    def plain() -> float:
        return rate(ROUND * ROUNDS, lambda: plain_rounds(pair, key))

    a, b = interleave(ours, plain, pair.rounds)
    ick.delete()
    pair.peer.unlink(key)
    name = "Ick.exchange of 100 / ZRANGE + ZREM, members/s"
    return Row.of(name, pair.fsync, a, b, 0.5, 1)


def our_rounds(ick: headwater.Ick, rounds: int = ROUNDS) -> None:
    for _ in range(rounds):
        batch = ick.reserve(ROUND)
        if ick.commit(*(member for member, _ in batch)) != ROUND:
            raise AssertionError("a round came out short")


def plain_rounds(pair: Icks, key: str) -> None:
    for _ in range(ROUNDS):
        batch: Any = pair.peer.zrange(key, 0, ROUND - 1, withscores=True)
        if pair.peer.zrem(key, *(member for member, _ in batch)) != ROUND:
            raise AssertionError("a round came out short")


def growth(pair: Icks, small: int, large: int) -> Row:
    """The same work on a small and on a large Ick: it must not depend on how much there is."""
    icks = {size: pair.fill(size)[0] for size in (small, large)}
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
