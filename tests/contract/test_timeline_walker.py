"""A walk compares every timeline on every cluster, and leaves them all in one state."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater import FarmUnreachable, InvalidInput
from headwater.timeline import AsyncFarm, Repaired
from headwater.timeline.layout import SETTLED, FarmLayout
from headwater.timeline.resharding import Resharder
from headwater.timeline.walker import (
    POOL,
    Scan,
    Walked,
    Walker,
    WalkPace,
    WalkPositions,
    WalkProgress,
)
from tests.support.farms import DEAD, Replica, one_each, replicas
from tests.support.servers import Server


@pytest.fixture
def three(valkey: Server) -> list[Replica]:
    return replicas(valkey, 3)


def scatter(three: list[Replica], count: int, chance: random.Random) -> set[bytes]:
    """Put timelines on one cluster, two or all, inserted or deleted, as if writes had been lost."""
    for number in range(count):
        for replica in chance.sample(three, chance.randint(1, 3)):
            mapping = {f"m{chance.randint(0, 3)}": chance.randint(-5, 5)}
            replica.client.zadd(f"k{number}" + chance.choice("+-"), mapping)
    return {f"k{number}".encode() for number in range(count)}


def walk(farm: str, **words: Any) -> Walked | None:
    stop = words.pop("stop", None)

    async def run() -> Walked | None:
        async with AsyncFarm.open(farm) as opened:
            event = asyncio.Event()
            if stop is not None:
                words["tell"] = stop(event)
            return await Walker(opened, rate=1_000_000, **words).walk(event)

    return asyncio.run(run())


def sets(replica: Replica) -> int:
    """Count the sorted sets of an instance; a walk notes itself beside them."""
    return sum(1 for _ in replica.client.scan_iter(count=1000, _type="zset"))


@pytest.mark.usefixtures("small_steps")
def test_a_walk_meets_each_timeline_once_wherever_it_is(three: list[Replica]) -> None:
    keys = scatter(three, 60, random.Random(1))
    three[0].client.set("k1+x+", "not a timeline")

    async def met() -> Counter[bytes]:
        async with AsyncFarm.open(one_each(three)) as farm:
            scan = Scan(farm.clusters, WalkPositions(), random.Random(2))
            return Counter([key async for batch in scan.batches() for key in batch.keys])

    assert asyncio.run(met()) == Counter(keys)


def test_after_a_walk_all_clusters_are_in_one_state(three: list[Replica]) -> None:
    keys = scatter(three, 60, random.Random(3))
    told: list[WalkProgress] = []
    walked = walk(one_each(three), tell=told.append)
    assert walked is not None
    assert walked.whole
    assert walked.repaired.keys == len(keys)
    assert walked.repaired.differing > 0
    for key in keys:
        assert three[0].states(key) == three[1].states(key) == three[2].states(key)
    assert told[-1].passed >= told[-1].total > 0
    again = walk(one_each(three))
    assert again is not None
    assert again.repaired == Repaired(len(keys), again.repaired.elements)


def test_the_order_is_by_chance(three: list[Replica]) -> None:
    scatter(three, 30, random.Random(4))

    async def order(seed: int) -> list[bytes]:
        async with AsyncFarm.open(one_each(three)) as farm:
            scan = Scan(farm.clusters, WalkPositions(), random.Random(seed))
            return [key async for batch in scan.batches() for key in batch.keys]

    orders = [asyncio.run(order(seed)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_a_walk_that_was_stopped_continues_where_it_was(
    three: list[Replica], tmp_path: Path
) -> None:
    count = 2 * POOL
    pipeline = three[0].client.pipeline()
    for number in range(count):
        pipeline.zadd(f"k{number}+", {"m": 1})
    pipeline.execute()
    state = tmp_path / "walk.json"

    def stop(event: asyncio.Event) -> Callable[[WalkProgress], None]:
        return lambda progress: event.set() if progress.repaired.keys > POOL + 500 else None

    assert walk(one_each(three), state=state, stop=stop) is None
    assert state.exists()
    before: Any = three[1].client.dbsize()
    assert POOL < before < count
    rest: list[WalkProgress] = []
    walked = walk(one_each(three), state=state, tell=rest.append)
    assert walked is not None
    # The figures are those of the whole round; what was noted as done is not done again.
    assert count <= walked.repaired.keys
    assert rest[0].repaired.keys > POOL
    assert [sets(replica) for replica in three] == [count] * 3
    assert not state.exists()


@pytest.mark.usefixtures("small_steps")
def test_a_walk_is_not_gone_on_with_where_one_of_another_farm_was(
    three: list[Replica], tmp_path: Path
) -> None:
    for number in range(60):
        three[0].client.zadd(f"k{number}+", {"m": 1})
    state = tmp_path / "walk.json"

    def stop(event: asyncio.Event) -> Callable[[WalkProgress], None]:
        return lambda progress: event.set() if progress.repaired.keys >= 40 else None

    assert walk(one_each(three[:2]), state=state, stop=stop) is None
    walked = walk(f"{three[0].url};{three[2].url}", state=state)
    assert walked is not None
    assert walked.repaired.keys == 60
    assert sets(three[2]) == 60


def test_a_round_begins_where_the_farm_is_by_then(three: list[Replica]) -> None:
    before, after = one_each(three[:1]), one_each(three[1:])
    three[0].client.zadd("k+", {"m": 1})

    async def rounds() -> list[Walked | None]:
        async with AsyncFarm.open(before) as farm:
            walker = Walker(farm)
            first = await walker.walk()
            resharder = Resharder(before, after)
            await resharder.run()
            await resharder.close()
            await asyncio.to_thread(three[1].client.zadd, "late+", {"m": 1})
            return [first, await walker.walk()]

    for keys, walked in enumerate(asyncio.run(rounds()), 1):
        assert walked is not None
        assert walked.whole
        assert walked.repaired.keys == keys
    assert three[2].client.exists("k+", "late+") == 2


def test_a_position_is_of_one_process_of_a_server(three: list[Replica], tmp_path: Path) -> None:
    keys = scatter(three, 20, random.Random(5))
    state = tmp_path / "walk.json"
    # Through with everything, says the file; but these servers are not those.
    places = {f"{n} {r.url}": {"generation": "gone", "cursor": -1} for n, r in enumerate(three, 1)}
    layout = FarmLayout(0, SETTLED, "", one_each(three)).safe
    state.write_text(json.dumps({"layout": layout, "places": places}))
    walked = walk(one_each(three), state=state)
    assert walked is not None
    assert walked.repaired.keys == len(keys)


def test_a_file_that_is_no_state_is_refused(three: list[Replica], tmp_path: Path) -> None:
    state = tmp_path / "other.json"
    state.write_text("something else")
    with pytest.raises(InvalidInput, match="not the state of a walk"):
        walk(one_each(three), state=state)
    assert state.read_text() == "something else"


@pytest.mark.parametrize("farm", [DEAD, f"{DEAD};127.0.0.1:2", f"{DEAD},127.0.0.1:2;127.0.0.1:3"])
def test_a_farm_of_which_no_instance_serves_is_an_error_that_names_them(
    farm: str, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with pytest.raises(FarmUnreachable, match="no instance of the farm is available") as caught:
        walk(farm, state=state)
    instances = [place for cluster in farm.split(";") for place in cluster.split(",")]
    assert len(caught.value.faults) == len(instances)
    assert all(f"redis://{instance}" in str(caught.value) for instance in instances)
    assert not state.exists()


@pytest.mark.usefixtures("small_steps")
def test_a_farm_that_dies_under_a_walk_is_an_error_and_the_next_walk_continues(
    tmp_path: Path,
) -> None:
    with Server(tcp=True) as server:
        for number in range(30):
            server.client().zadd(f"k{number}+", {"m": 1})
        state = tmp_path / "state"

        def kill(_: asyncio.Event) -> Callable[[WalkProgress], None]:
            return lambda _: server.kill() if server.answers() else None

        with pytest.raises(FarmUnreachable, match="no instance"):
            walk(server.url, stop=kill, state=state)
        assert state.exists()
        server.restart()
        walked = walk(server.url, state=state)
        assert walked is not None
        assert walked.whole


def test_instances_that_are_away_are_named_and_the_others_walked(three: list[Replica]) -> None:
    keys: set[bytes] = set()
    for number in range(20):
        three[number % 2].client.zadd(f"k{number}+", {"m": 1})
        keys.add(f"k{number}".encode())
    walked = walk(f"{three[0].url};{three[1].url};{DEAD}")
    assert walked is not None
    assert not walked.whole
    assert list(walked.unscanned) == [f"3 redis://{DEAD}"]
    for key in keys:
        assert three[0].states(key) == three[1].states(key)


def test_a_pace_is_held_over_time() -> None:
    async def timed() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        # Its clock stands still, so that each waits for all before it.
        pace = WalkPace(100, clock=lambda: 0.0)
        for _ in range(4):
            await pace.wait(2)
        return loop.time() - began

    assert asyncio.run(timed()) >= 0.02 + 0.04 + 0.06
