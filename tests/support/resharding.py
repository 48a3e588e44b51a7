"""Moves of farms for tests: begun, stopped, and what must be true behind them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from headwater.timeline import Farm
from headwater.timeline.farm.options import parse_farm
from headwater.timeline.pool import Pool
from headwater.timeline.records import States, kept, merge
from headwater.timeline.resharding import Resharder
from headwater.timeline.walker import WalkProgress
from tests.support.farms import Replica

KEYS = [f"key-{n}" for n in range(60)]

# A busy machine may take longer for an answer than farms wait by default.
open_farm = partial(Farm.open, timeout_ms=30_000)


def farm_of(replicas: list[Replica], text: str) -> str:
    """Turn "01;23" into the farm of two clusters with two instances each."""
    return ";".join(",".join(replicas[int(n)].url for n in part) for part in text.split(";"))


def reshard(
    old: str,
    new: str,
    act: Callable[[Resharder], Any] = lambda resharder: resharder.run(),
    **words: Any,
) -> Any:
    async def work() -> Any:
        resharder = Resharder(old, new, rate=1_000_000, **words)
        try:
            return await act(resharder)
        finally:
            await resharder.close()

    return asyncio.run(work())


def fill(farm: Farm, chance: random.Random) -> None:
    for write in (farm.insert, farm.delete):
        write([(key, chance.randint(-5, 5), f"m{chance.randint(0, 6)}") for key in KEYS * 3])
    farm.settle()


def truth(replicas: list[Replica], farm: str) -> dict[str, States]:
    """Merge what all instances of a farm hold, wherever it is."""
    urls = {url for plan in parse_farm(farm) for url in plan.urls}
    using = [replica for replica in replicas if replica.url in urls]
    return {
        key: kept(merge(replica.states(key.encode()) for replica in using), 10_000) for key in KEYS
    }


def assert_lies(replicas: list[Replica], farm: str, expected: dict[str, States]) -> None:
    """Every cluster has all of every key, where its hash says, and nothing anywhere else."""
    held: dict[str, set[bytes]] = {replica.url: set() for replica in replicas}
    for plan in parse_farm(farm):
        pool = Pool(plan.urls, "murmur3", 30_000)
        for key, states in expected.items():
            url = plan.urls[pool.index(key.encode())]
            (replica,) = [one for one in replicas if one.url == url]
            assert replica.states(key.encode()) == states
            held[url].add(key.encode())
    for plan in parse_farm(farm):
        for url in plan.urls:
            (replica,) = [one for one in replicas if one.url == url]
            found = {name[:-1] for name in replica.client.scan_iter(_type="zset")}
            assert found <= held[url]


def stop_behind(old: str, new: str, keys: int, state: Path | None = None) -> None:
    """Begin a move, and stop when so many timelines are copied."""
    stop = asyncio.Event()

    def tell(progress: WalkProgress) -> None:
        if progress.repaired.keys >= keys:
            stop.set()

    assert reshard(old, new, lambda resharder: resharder.run(stop), tell=tell, state=state) is None


async def begin(resharder: Resharder) -> None:
    """Announce a move, and stop before anything is copied."""
    stop = asyncio.Event()
    stop.set()
    assert await resharder.run(stop) is None
