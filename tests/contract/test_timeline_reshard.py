"""A farm is moved while it is used: nothing is lost, whoever dies, and nobody is left behind."""

from __future__ import annotations

import contextlib
import random
import threading
from typing import Any

import pytest

from headwater import AllReplicasFailed, QuorumFailed
from headwater.timeline.cluster import Cluster
from headwater.timeline.pool import Pool
from headwater.timeline.resharding import ReshardResult
from tests.support.farms import Replica
from tests.support.resharding import (
    KEYS,
    assert_lies,
    farm_of,
    fill,
    open_farm,
    reshard,
    truth,
)

MOVES = [
    ("01;23", "014;235"),  # one more instance for each cluster
    ("012;345", "01;34"),  # one less
    ("0", "0;1;2"),  # more copies
    ("0;1;2", "1"),  # fewer
    ("01;23", "45;67"),  # all others
    ("01;23", "32;10"),  # the same in another order
]


@pytest.mark.parametrize(("old", "new"), MOVES)
def test_every_timeline_is_where_the_new_farm_looks(
    eight: list[Replica], old: str, new: str
) -> None:
    before, after = farm_of(eight, old), farm_of(eight, new)
    with open_farm(before) as farm:
        fill(farm, random.Random(1))
        expected = truth(eight, before)
        moved: ReshardResult = reshard(before, after)
        assert_lies(eight, after, expected)
        assert len(moved.left) == len(set(old) - set(new) - {";"})
        # Who knew the old farm only follows, and finds the same.
        for key in KEYS:
            shown = {record.member.encode() for record in farm.select([key], limit=100)[key]}  # type: ignore[union-attr]
            assert shown == {m for m, state in expected[key].items() if not state.deleted}
        farm.insert([(KEYS[0], 99.0, "late")])
        farm.settle()
    with open_farm(after) as farm:
        assert farm.select([KEYS[0]], limit=1)[KEYS[0]][0].member == "late"
    again: ReshardResult = reshard(before, after)
    assert again.repaired.written == 0


def test_reads_and_writes_are_served_all_the_while_and_nothing_is_lost(
    eight: list[Replica],
) -> None:
    before, after = farm_of(eight, "01;23"), farm_of(eight, "014;235;67")
    done = threading.Event()
    written: list[dict[tuple[str, str], float]] = [{}, {}]
    failures: list[Exception] = []

    def use(number: int) -> None:
        chance = random.Random(number)
        mine = written[number]
        with open_farm(before) as farm:
            score = 0.0
            while not done.is_set() or score < 50:
                score += 1
                key, member = chance.choice(KEYS), f"w{number}-{chance.randint(0, 9)}"
                try:
                    farm.insert([(key, score, member)])
                    mine[key, member] = score
                    shown = farm.select([key], limit=1000)[key]
                    assert (score, member) in [(r.score, r.member) for r in shown]
                except Exception as error:  # noqa: BLE001  told by the test below
                    failures.append(error)
                    return

    with open_farm(before) as farm:
        fill(farm, random.Random(2))
    users = [threading.Thread(target=use, args=(number,)) for number in range(2)]
    for user in users:
        user.start()
    try:
        for target, source in ((after, before), (before, after), (after, before)):
            reshard(source, target)
            for replica in eight:
                if replica.url not in target:
                    replica.client.flushdb()
    finally:
        done.set()
        for user in users:
            user.join()
    assert not failures, failures
    with open_farm(after) as farm:
        found = farm.select(KEYS, limit=1000)
        scores = {(key, r.member): r.score for key, rows in found.items() for r in rows}
    for mine in written:
        assert len(mine) > 30
        assert all(scores[place] == score for place, score in mine.items())


class Died(BaseException):
    """As if killed."""


@pytest.mark.parametrize("told", [0, 1, 5, 9, 10, 14, 25, 26, 30, 41])
def test_whoever_dies_is_followed_by_another_who_continues(
    eight: list[Replica], monkeypatch: pytest.MonkeyPatch, told: int
) -> None:
    before, after = farm_of(eight, "01;23"), farm_of(eight, "014;235")
    with open_farm(before) as farm:
        fill(farm, random.Random(3))
        expected = truth(eight, before)
        count = 0
        honest = Cluster.announce

        async def announce(self: Cluster, layout: Any) -> Any:
            # Die between two instances, or behind the last.
            nonlocal count
            for instance in self.pool.instances:
                if count == told:
                    raise Died
                count += 1
                single = Cluster(Pool([instance.url], "murmur3", 30_000), 1)
                await honest(single, layout)
                await single.close()
            return [layout]

        monkeypatch.setattr(Cluster, "announce", announce)
        with contextlib.suppress(Died):
            reshard(before, after)
        monkeypatch.setattr(Cluster, "announce", honest)
        # In whatever state it was left: served, by who was there and by who comes.
        farm.insert([(KEYS[0], 50.0, "meanwhile")])
        with open_farm(after if told >= 10 else before) as other:
            shown = other.select([KEYS[0]], limit=1)[KEYS[0]]
            assert shown[0].member == "meanwhile"
        farm.settle()
        expected = {**expected, KEYS[0]: truth(eight, f"{before};{after}")[KEYS[0]]}
        reshard(before, after)
        assert_lies(eight, after, expected)


def test_who_slept_through_a_move_is_refused_by_the_instance_and_follows(
    eight: list[Replica],
) -> None:
    before, after = farm_of(eight, "0"), farm_of(eight, "1")
    with open_farm(before) as farm:
        farm.insert([("k", 1.0, "m")])
        reshard(before, after)
        left = eight[0].states(b"k")
        farm.insert([("k", 2.0, "m")])
        assert eight[0].states(b"k") == left
        assert eight[1].states(b"k")[b"m"].score == 2.0
        eight[1].client.flushdb()
    # The old instance alone tells where the farm is.
    with open_farm(before) as farm:
        farm.insert([("k", 3.0, "m")])
    assert eight[1].states(b"k")[b"m"].score == 3.0


def test_a_farm_that_does_not_serve_where_it_went_is_an_error(eight: list[Replica]) -> None:
    before, after = farm_of(eight, "0"), farm_of(eight, "1")
    with open_farm(before) as farm:
        farm.insert([("k", 1.0, "m")])
    reshard(before, after)
    eight[0].client.hset("hw:{timelines}", mapping={"epoch": 9, "new": "127.0.0.1:1"})
    with open_farm(before) as farm:
        with pytest.raises(QuorumFailed):
            farm.insert([("k", 2.0, "m")])
        with pytest.raises(AllReplicasFailed):
            farm.select(["k"])
