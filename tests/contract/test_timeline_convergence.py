"""Whatever Roshi left, and whatever is written, repaired and walked in any order, converges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.timeline import AsyncFarm, State
from headwater.timeline.cluster import Changes, WriteBatch
from headwater.timeline.farm.repairing import add_change
from headwater.timeline.records import NO_HORIZON, kept, merge, shown
from headwater.timeline.walker import Walker
from tests.support import blocking
from tests.support.examples import MODEL_SETTINGS, patient
from tests.support.farms import Replica, one_each, replicas, roshi_keeps
from tests.support.servers import Server, redis_binary

KEY = b"k"
MEMBERS = st.sampled_from([bytes([n]) for n in range(97, 109)])
STATES = st.builds(State, st.integers(-6, 6).map(float), st.booleans())
OPERATIONS = st.tuples(MEMBERS, STATES)
# Which cluster gets an operation; those beyond the last are all of them together, by the farm.
WRITES = st.tuples(st.just("write"), st.integers(0, 3), OPERATIONS)
STEPS = st.one_of(
    WRITES, WRITES, WRITES, st.tuples(st.sampled_from(["repair", "walk", "read"]), st.just(0))
)


class Story(NamedTuple):
    """What each copy got from Roshi, and what happens then."""

    filled: list[list[tuple[bytes, State]]]
    steps: list[tuple[Any, ...]]
    max_size: int
    keep: int


@st.composite
def stories(draw: st.DrawFn) -> Story:
    filled = draw(st.lists(st.lists(OPERATIONS, max_size=30), min_size=3, max_size=3))
    size = draw(st.integers(1, 4))
    keep = draw(st.sampled_from([size, 2 * size, 2 * size, 6 * size]))
    return Story(filled, draw(st.lists(STEPS, max_size=12)), size, keep)


async def run(story: Story, three: list[Replica]) -> None:
    copies = [roshi_keeps(operations, story.max_size) for operations in story.filled]
    for replica, states in zip(three, copies, strict=True):
        replica.client.flushdb()
        for member, state in states.items():
            replica.client.zadd(KEY + (b"-" if state.deleted else b"+"), {member: state.score})
    everything = list(copies)
    words: dict[str, Any] = {"max_size": story.max_size, "keep": story.keep, "timeout_ms": 20_000}
    async with AsyncFarm.open(one_each(three), **words) as farm:
        walker = Walker(farm, rate=1_000_000)
        for kind, place, *given_to in story.steps:
            if kind == "repair":
                await farm.repair([KEY])
            elif kind == "walk":
                assert await walker.walk() is not None
            elif kind == "read":
                page = (await farm.select([KEY], limit=100))[KEY]
                assert len(page) <= story.max_size
                await farm.settle()
            else:
                ((member, state),) = given_to
                everything.append({member: state})
                if place < len(three):
                    changes: Changes = {}
                    add_change(changes, KEY, member, state)
                    await farm.clusters[place].write(WriteBatch(changes, NO_HORIZON))
                else:
                    write = farm.delete if state.deleted else farm.insert
                    await write([(KEY, state.score, member)])
                    await farm.settle()
            assert all(len(replica.states(KEY)) <= 6 * story.max_size for replica in three)
        held = sum(len(replica.states(KEY)) for replica in three)
        alike = len({frozenset(replica.states(KEY).items()) for replica in three}) == 1
        repaired = await farm.repair([KEY])
        truth = kept(merge(everything), story.keep)
        assert not (alike and repaired.written), "copies that agree are left as they are"
        assert not repaired.trimmed or len(merge(everything)) > story.keep, "there was room"
        assert [replica.states(KEY) for replica in three] == [truth] * 3
        assert (await farm.repair([KEY]))[2:] == (0, 0, 0, 0, 0)
        left = sum(len(replica.states(KEY)) for replica in three)
        if left < held:
            assert repaired.trimmed >= held - left, "what goes is reported"
        page = (await farm.select([KEY], limit=100))[KEY]
        assert [(record.member, record.score) for record in page] == shown(truth, story.max_size)


@pytest.fixture(scope="module", params=["plain", "redis"])
def three(request: pytest.FixtureRequest) -> Iterator[list[Replica]]:
    with Server(redis_binary() if request.param == "redis" else None) as server:
        yield replicas(server, 3)


@patient
def test_writes_repairs_and_walks_in_any_order_on_what_roshi_left_converge_to_the_law(
    loop: blocking.Loop, three: list[Replica]
) -> None:
    @MODEL_SETTINGS
    @given(stories())
    def converges(story: Story) -> None:
        loop.wait(run(story, three))

    converges()
