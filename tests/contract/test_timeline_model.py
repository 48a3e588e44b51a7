"""Clusters that got any operations in any order, or only some, converge to one merged state."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.timeline import AsyncFarm, Record, State, Written
from headwater.timeline.cluster import Changes, WriteBatch
from headwater.timeline.farm.repairing import add_change
from headwater.timeline.records import NO_HORIZON, States, kept, merge, shown
from tests.support import blocking
from tests.support.examples import MODEL_SETTINGS, patient
from tests.support.farms import Replica, replicas
from tests.support.servers import Server, redis_binary

MEMBERS = st.sampled_from([b"", b"a", b"b", b"B", b"\xff", b"\x00", b"a\x00", "é".encode(), b"aa"])
SCORES = st.one_of(
    st.integers(-2, 2).map(float),
    st.sampled_from([-1.7e308, -0.1, -5e-324, 0.1, 1 / 3, 2.0**53, 1.7e308]),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda score: score + 0.0),
)


class Operation(NamedTuple):
    member: bytes
    state: State


class Story(NamedTuple):
    """Operations, and which of them reach each cluster, in which order, before and after a rise."""

    operations: list[Operation]
    before: list[list[int]]
    after: list[list[int]]
    max_size: int
    keep: int
    horizon: float


@st.composite
def stories(draw: st.DrawFn) -> Story:
    kinds = st.builds(State, SCORES, st.booleans())
    operations = draw(st.lists(st.builds(Operation, MEMBERS, kinds), min_size=1, max_size=14))
    some = st.lists(st.sampled_from(range(len(operations))), max_size=2 * len(operations))
    three = st.lists(some, min_size=3, max_size=3)
    size = draw(st.sampled_from([1, 2, 3, 5, 100]))
    keep = draw(st.sampled_from([size, size + 1, 2 * size, 3 * size]))
    horizons = st.one_of(st.just(NO_HORIZON), SCORES)
    return Story(operations, draw(three), draw(three), size, keep, draw(horizons))


def delivered(story: Story) -> States:
    places = {place for part in (*story.before, *story.after) for place in part}
    chosen = [story.operations[place] for place in places]
    return merge({operation.member: operation.state} for operation in chosen)


async def deliver(farm: AsyncFarm, story: Story, key: bytes) -> None:
    """Bring each cluster what reaches it: first one by one, after the horizon rose as a batch."""
    for cluster, before, after in zip(farm.clusters, story.before, story.after, strict=True):
        held: States = {}
        for place in before:
            changes: Changes = {}
            add_change(changes, key, *story.operations[place])
            outcome = await cluster.write(WriteBatch(changes, NO_HORIZON))
            held, expected = written_to(held, story.operations[place], story.keep)
            assert outcome.written == expected
        rest: Changes = {}
        for place in after:
            add_change(rest, key, *story.operations[place])
        if rest:
            outcome = await cluster.write(WriteBatch(rest, story.horizon))
            assert sum(outcome.written[:3]) == len(after)


def written_to(held: States, operation: Operation, keep: int) -> tuple[States, Written]:
    """Return what a key holds after an operation, and what is said of that."""
    member, state = operation
    if member in held and held[member] >= state:
        return held, Written(unchanged=1)
    merged = merge([held, {member: state}])
    after = kept(merged, keep)
    if member not in after:
        return held, Written(rejected=1)
    return after, Written(applied=1, trimmed=len(merged) - len(after))


def in_order(key: bytes, states: States, most: int = 1000) -> list[Record]:
    return [Record(key, score, member) for member, score in shown(states, most)]


async def check(story: Story, three: list[Replica]) -> None:
    key = f"model-{secrets.token_hex(6)}".encode()
    words: dict[str, Any] = {"max_size": story.max_size, "keep": story.keep, "timeout_ms": 20_000}
    if story.horizon != NO_HORIZON:
        words["horizon"] = story.horizon
    everything = delivered(story)
    truth = kept(everything, story.keep, story.horizon)
    expected = in_order(key, truth, story.max_size)
    async with AsyncFarm.open(";".join(replica.url for replica in three), **words) as farm:
        await deliver(farm, story, key)
        # Before any repair: nothing but the newest operation on each member is shown, and all of
        # what is kept. How many tombstones lie between, a read need not know.
        page = (await farm.select([key], limit=100))[key]
        newest = {m: everything[m] for _, _, m in page if isinstance(m, bytes)}
        assert page == in_order(key, newest)
        assert len(page) <= story.max_size
        assert all(record.score >= story.horizon for record in page)
        if len(truth) == len(everything):
            assert page == expected
        if len(page) < story.max_size:
            assert set(page) >= set(expected)
        await farm.settle()
        await farm.repair([key])
        assert [replica.states(key) for replica in three] == [truth] * 3
        assert (await farm.repair([key]))[2:] == (0, 0, 0, 0, 0)
        assert (await farm.select([key], limit=100))[key] == expected
        pairs = [(key, member) for member in everything]
        assert await farm.score(pairs) == {pair: truth.get(pair[1]) for pair in pairs}
        await pages_line_up(farm, key, expected)


async def pages_line_up(farm: AsyncFarm, key: bytes, everything: list[Record]) -> None:
    for step in (1, 3):
        found: list[Record] = []
        for _ in range(len(everything) // step + 1):
            page = await farm.select_range([key], found[-1] if found else None, limit=step)
            found += page[key]
        assert found == everything
        ranks = range(0, len(everything) + 1, step)
        by_rank = [(await farm.select([key], at, step))[key] for at in ranks]
        assert [record for page in by_rank for record in page] == everything
    for stop in everything[:4]:
        place = everything.index(stop)
        newer = (await farm.select_range([key], stop=stop, limit=100))[key]
        assert newer == everything[:place]


@pytest.fixture(scope="module", params=["plain", "redis"])
def three(request: pytest.FixtureRequest) -> Iterator[list[Replica]]:
    with Server(redis_binary() if request.param == "redis" else None) as server:
        yield replicas(server, 3)


@patient
def test_any_operations_in_any_order_on_any_clusters_heal_to_the_law(
    loop: blocking.Loop, three: list[Replica]
) -> None:
    @MODEL_SETTINGS
    @given(stories())
    def heals(story: Story) -> None:
        loop.wait(check(story, three))

    heals()
