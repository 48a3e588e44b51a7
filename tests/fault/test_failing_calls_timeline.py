"""Timelines while any call of a server function fails: nothing is lost, and all of it heals.

Every case is tried with each of its calls failing, once or from then on. Afterwards a client that
meets no failure repeats the operation, or repairs the key, or walks the farm, and what lies in the
servers is the result of the merge rule.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import redis

from headwater.timeline import AsyncFarm, Farm, State
from headwater.timeline.cluster import Cluster
from headwater.timeline.layout import COPYING, FarmLayout
from headwater.timeline.records import States, kept, merge
from headwater.timeline.walker import Walker
from tests.support.failing_calls import FailingServer, Failure, Site
from tests.support.farms import Replica, one_each, replicas

pytestmark = pytest.mark.fault

SIZE, KEEP = 3, 6
WORDS: dict[str, Any] = {"max_size": SIZE, "keep": KEEP, "timeout_ms": 20_000}
FULL: States = {
    b"a": State(10.0, False),
    b"b": State(11.0, True),
    b"c": State(12.0, False),
    b"d": State(13.0, True),
    b"e": State(14.0, False),
    b"f": State(15.0, True),
}
ROOMY: States = {b"a": State(10.0, False), b"b": State(11.0, True)}


class Case(NamedTuple):
    """Operations of one kind on a key that holds something; what is below the horizon goes."""

    held: States
    deleted: bool
    operations: States
    horizon: float = -math.inf

    @property
    def before(self) -> States:
        return kept(self.held, KEEP, self.horizon)

    @property
    def after(self) -> States:
        return kept(merge([self.held, self.operations]), KEEP, self.horizon)


def inserts(held: States, horizon: float = -math.inf, **scores: float) -> Case:
    states = {member.encode(): State(score, False) for member, score in scores.items()}
    return Case(held, False, states, horizon)


def deletes(held: States, horizon: float = -math.inf, **scores: float) -> Case:
    states = {member.encode(): State(score, True) for member, score in scores.items()}
    return Case(held, True, states, horizon)


CASES = {
    "into nothing": inserts({}, x=1),
    "into nothing but inserts": inserts({b"a": State(1.0, False)}, a=2, x=3),
    "an insert with room": inserts(ROOMY, x=20),
    "an insert that beats a delete": inserts(ROOMY, b=20, x=21),
    "a delete that beats an insert": deletes(ROOMY, a=20, x=21),
    "an insert into a full key": inserts(FULL, x=20, y=21, b=22),
    "a delete in a full key": deletes(FULL, x=20, a=21, y=22),
    "what is too old": inserts(FULL, x=1, c=2),
    "with a horizon": inserts(FULL, 12.5, x=20, d=21),
    "deletes with a horizon": deletes(FULL, 12.5, e=20, x=21),
}


@pytest.fixture(scope="module")
def two(failing: FailingServer) -> list[Replica]:
    return replicas(failing.server, 2)


KEYS = (f"key-{number}" for number in itertools.count())


class Target(NamedTuple):
    """A key on both clusters; the operation is done by one of them, while calls fail."""

    key: str
    case: Case
    two: list[Replica]

    @classmethod
    def fresh(cls, case: Case, two: list[Replica]) -> Target:
        target = cls(next(KEYS), case, two)
        for replica, (member, state) in itertools.product(two, case.held.items()):
            name = target.key + ("-" if state.deleted else "+")
            replica.client.zadd(name, {member: state.score})
        return target

    def write(self, *places: int) -> None:
        """Do the operation on some of the clusters."""
        horizon = self.case.horizon if math.isfinite(self.case.horizon) else None
        with Farm.open(
            one_each([self.two[place] for place in places]), horizon=horizon, **WORDS
        ) as farm:
            write = farm.delete if self.case.deleted else farm.insert
            write([(self.key, s.score, member) for member, s in self.case.operations.items()])

    def raw(self, place: int = 0) -> list[tuple[bytes, State]]:
        """Return what lies in both sets of a cluster; a member may be in both."""
        client, found = self.two[place].client, []
        for suffix, deleted in (("+", False), ("-", True)):
            rows: Any = client.zrange(self.key + suffix, 0, -1, withscores=True)
            found += [(member, State(score, deleted)) for member, score in rows]
        return found

    def nothing_is_lost(self) -> None:
        """Check that every member is as it was, or as the operation wants it."""
        found = merge({member: state} for member, state in self.raw())
        for member, state in found.items():
            assert state in (self.case.held.get(member), self.case.operations.get(member))
        for member in self.case.before.keys() & self.case.after.keys():
            assert member in found

    def states(self) -> list[States]:
        return [replica.states(self.key.encode()) for replica in self.two]


def run_case(
    failing: FailingServer, two: list[Replica], case: Case, check: Callable[[Target], None]
) -> None:
    def checked(target: Target, _: Failure) -> None:
        target.nothing_is_lost()
        check(target)

    failing.fail_in_turn(lambda: Target.fresh(case, two), lambda target: target.write(0), checked)


@pytest.mark.parametrize("name", CASES)
def test_a_repeat_completes_what_a_failed_write_has_left(
    failing: FailingServer, two: list[Replica], name: str
) -> None:
    def repeat(target: Target) -> None:
        target.write(0)
        assert target.states()[0] == target.case.after

    run_case(failing, two, CASES[name], repeat)


@pytest.mark.parametrize("name", CASES)
def test_a_repair_brings_copies_together_after_a_failed_write(
    failing: FailingServer, two: list[Replica], name: str
) -> None:
    def repair(target: Target) -> None:
        target.write(1)
        horizon = target.case.horizon if math.isfinite(target.case.horizon) else None
        with Farm.open(one_each(two), horizon=horizon, **WORDS) as farm:
            farm.repair([target.key])
            assert target.states() == [target.case.after] * 2
            assert farm.repair([target.key])[2:] == (0, 0, 0, 0, 0)

    run_case(failing, two, CASES[name], repair)


@pytest.mark.parametrize(
    "name",
    ["an insert that beats a delete", "a delete that beats an insert", "a delete in a full key"],
)
def test_a_read_that_sees_a_difference_completes_a_failed_write(
    failing: FailingServer, two: list[Replica], name: str
) -> None:
    """What is shown is right at once, and what is seen to differ is repaired."""

    def read(target: Target) -> None:
        target.write(1)
        with Farm.open(one_each(two), **WORDS) as farm:
            shown = {record.member for record in farm.select([target.key])[target.key]}
            expected = {m for m, state in target.case.after.items() if not state.deleted}
            assert {str(member).encode() for member in shown} == expected
            farm.settle()
            # The sets that reads see are alike; tombstones that they do not see, by a repair.
            inserted = [{m for m, s in one if not s.deleted} for one in map(target.raw, (0, 1))]
            assert inserted == [expected] * 2

    run_case(failing, two, CASES[name], read)


def test_a_walk_completes_what_a_failed_write_has_left_on_a_farm_of_one_cluster(
    failing: FailingServer, two: list[Replica]
) -> None:
    """Nobody else has the operation: each member is as it was, or as it was wanted, in one set."""

    async def walk() -> None:
        async with AsyncFarm.open(two[0].url, **WORDS) as farm:
            assert await Walker(farm, rate=1_000_000).walk() is not None

    def healed(target: Target) -> None:
        known = merge({member: state} for member, state in target.raw())
        asyncio.run(walk())
        assert target.states()[0] == kept(known, KEEP)
        two[0].client.flushdb()
        two[1].client.flushdb()

    two[0].client.flushdb()
    for name in ("an insert that beats a delete", "a delete that beats an insert"):
        run_case(failing, two, CASES[name], healed)


def read(target: Target) -> tuple[Any, Any]:
    """Read by cursor, also among equal scores, and by member."""
    with Farm.open(target.two[0].url, **WORDS) as farm:
        page = farm.select_range([target.key], (15.0, "z"), (9.0, ""))
        tie = farm.select_range([target.key], (12.0, "b"), (12.0, "a"))
        assert tie[target.key] == []
        return page[target.key], farm.score([(target.key, "a"), (target.key, "b")])


def test_reads_by_cursor_and_scores_fail_and_change_nothing(
    failing: FailingServer, two: list[Replica]
) -> None:
    def check(target: Target, _: Failure) -> None:
        page, scores = read(target)
        assert [record.member for record in page] == ["e", "c", "a"]
        assert list(scores.values()) == [FULL[b"a"], FULL[b"b"]]
        assert target.states() == [FULL] * 2

    failing.fail_in_turn(lambda: Target.fresh(Case(FULL, False, {}), two), read, check)


LAYOUT = FarmLayout(3, COPYING, "a:1", "b:1")


def announce(failing: FailingServer) -> list[FarmLayout]:
    """Announce a layout to an instance that no other test uses."""

    async def run() -> list[FarmLayout]:
        cluster = Cluster.open([f"{failing.server.url}?db=7"], "murmur3", 20_000, KEEP)
        try:
            return await cluster.announce(LAYOUT)
        finally:
            await cluster.close()

    return asyncio.run(run())


def test_a_layout_that_could_not_be_announced_is_announced_by_the_next_call(
    failing: FailingServer,
) -> None:
    admin = redis.Redis(unix_socket_path=str(failing.server.socket), db=7)

    def check(_: object, __: Failure) -> None:
        assert admin.hlen("hw:{timelines}") in (0, 4), "all of a layout, or none"
        assert announce(failing) == [LAYOUT]

    failing.fail_in_turn(admin.flushdb, lambda _: announce(failing), check)


def test_the_operations_here_pass_every_call_of_every_function(
    failing: FailingServer, two: list[Replica]
) -> None:
    """Every call that an operation passes is failed by the tests above."""
    passed: set[Site] = set()
    for case in CASES.values():
        target = Target.fresh(case, two)
        with failing.armed(None) as sites:
            target.write(0)
        passed.update(sites)
    target = Target.fresh(Case(FULL, False, {}), two)
    redis.Redis(unix_socket_path=str(failing.server.socket), db=7).flushdb()
    with failing.armed(None) as sites:
        read(target)
        announce(failing)
    passed.update(sites)
    assert sorted(map(str, failing.sites("timeline") - passed)) == []
