"""Farms for tests: databases of one server as instances, by the sync and the async farm."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias, cast

import redis

from headwater.timeline import AsyncFarm, Farm
from headwater.timeline.records import State, States
from tests.support import blocking
from tests.support.servers import Server

# Opens a farm of both kinds of client; see the fixture ``open_``.
OpenFarm: TypeAlias = Callable[..., Farm]
# An instance that is not there.
DEAD = "127.0.0.1:1"


class Replica(NamedTuple):
    """An instance of a farm, and what lies in it."""

    url: str
    client: redis.Redis

    def states(self, key: bytes) -> States:
        """Read both sets of a key; fails when a member is in both."""
        found: States = {}
        for suffix, deleted in ((b"+", False), (b"-", True)):
            rows: Any = self.client.zrange(key + suffix, 0, -1, withscores=True)
            for member, score in rows:
                assert member not in found
                found[member] = State(score, deleted)
        return found


def replicas(server: Server, count: int) -> list[Replica]:
    """Take the first databases of a server for instances, emptied."""
    server.client().flushall()
    return [
        Replica(
            f"{server.url}?db={place}", redis.Redis(unix_socket_path=str(server.socket), db=place)
        )
        for place in range(count)
    ]


class BlockingFarm:
    """The async farm with the manners of the sync one."""

    def __init__(self, loop: blocking.Loop, farm: AsyncFarm) -> None:
        self._loop = loop
        self._farm = farm

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._farm, name)

        def call(*args: Any, **words: Any) -> Any:
            found = method(*args, **words)
            return self._loop.wait(found) if inspect.isawaitable(found) else found

        return call


def open_farm(manner: str, loop: blocking.Loop, urls: str, **words: Any) -> Farm:
    """Open a farm by the sync or the async class; to tests both are the sync one.

    A busy machine is no failure here, unless a test says so.
    """
    words.setdefault("timeout_ms", 20_000)
    if manner == "sync":
        return Farm.open(urls, **words)
    return cast("Farm", BlockingFarm(loop, AsyncFarm.open(urls, **words)))


def members(farm: Farm, key: str = "k", **words: Any) -> list[Any]:
    """Select the members of a key."""
    return [record.member for record in farm.select([key], **words)[key]]


def one_each(replicas: Iterable[Replica | Server]) -> str:
    """Name the farm in which each instance is a cluster."""
    return ";".join(replica.url for replica in replicas)


# ── Roshi's own law, as a model: what its servers leave in the two sorted sets of a key ──────────
# Each set is bounded by itself: Roshi keeps up to ``max_size`` inserts, and up to as many deletes.
# Which of them, depends on the order of operations. Written from what its cluster package does.


def roshi_keeps(operations: Iterable[tuple[bytes, State]], max_size: int) -> States:
    """Return what a key of Roshi holds after some operations, in their order."""
    states: States = {}
    for member, state in operations:
        same = sorted(s.score for s in states.values() if s.deleted == state.deleted)
        if len(same) >= max_size and state.score < same[0]:
            continue
        known = states.get(member)
        if known is not None and (
            state.score <= known.score if known.deleted else state.score < known.score
        ):
            continue
        states[member] = state
        _trim(states, state.deleted, max_size)
    return states


def _trim(states: States, deleted: bool, max_size: int) -> None:
    same = sorted((s.score, member) for member, s in states.items() if s.deleted == deleted)
    for _, member in same[: max(0, len(same) - max_size)]:
        del states[member]
