"""A farm is moved while it is used: nothing is lost, whoever dies, and nobody is left behind."""

from __future__ import annotations

import contextlib
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from headwater import AllReplicasFailed, InvalidInput, QuorumFailed, ReshardRefused
from headwater.timeline import Farm
from headwater.timeline.cluster import Cluster
from headwater.timeline.pool import Pool
from headwater.timeline.resharding import Estimate, ReshardResult
from headwater.timeline.walker import WalkProgress
from tests.support.commands import run
from tests.support.farms import Replica
from tests.support.resharding import (
    KEYS,
    assert_lies,
    begin,
    farm_of,
    fill,
    open_farm,
    reshard,
    stop_behind,
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


# ── A move can be stopped, continued, given up and estimated; what would do harm is refused ──────


def test_a_move_that_was_stopped_is_gone_on_with(eight: list[Replica]) -> None:
    before, after = farm_of(eight, "0"), farm_of(eight, "1")
    with Farm.open(before) as farm:
        fill(farm, random.Random(4))
    expected = truth(eight, before)
    stop_behind(before, after, 1)
    assert 0 < len(eight[1].client.keys()) < len(eight[0].client.keys())
    with pytest.raises(ReshardRefused, match="under way"):
        reshard(before, farm_of(eight, "2"))
    reshard(before, after)
    assert_lies(eight, after, expected)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("forgotten", [True, False], ids=["abort-with-state", "abort-without"])
def test_a_move_is_not_gone_on_with_where_another_was(
    eight: list[Replica], tmp_path: Path, forgotten: bool
) -> None:
    before, after = farm_of(eight, "0"), farm_of(eight, "2")
    state = tmp_path / "move.json"
    with Farm.open(before) as farm:
        fill(farm, random.Random(6))
    expected = truth(eight, before)
    stop_behind(before, farm_of(eight, "1"), 40, state)
    words = {"state": state} if forgotten else {}
    reshard(before, farm_of(eight, "1"), lambda resharder: resharder.abort(), **words)
    assert state.exists() != forgotten
    moved: ReshardResult = reshard(before, after, state=state)
    assert moved.repaired.keys == len(KEYS)
    assert_lies(eight, after, expected)
    assert not state.exists()


@pytest.mark.usefixtures("small_steps")
def test_a_move_with_a_state_is_gone_on_with_where_it_was(
    eight: list[Replica], tmp_path: Path
) -> None:
    before, after = farm_of(eight, "0"), farm_of(eight, "1")
    with Farm.open(before) as farm:
        fill(farm, random.Random(6))
    expected = truth(eight, before)
    secret = after.replace("unix://", "unix://default:secret@")
    state = tmp_path / "move.json"
    stop_behind(before, secret, 40, state)
    assert "secret" not in state.read_text()
    told: list[WalkProgress] = []
    reshard(before, secret, tell=told.append, state=state)
    assert told[0].repaired.keys > 20
    assert_lies(eight, after, expected)


def test_a_file_that_is_no_state_is_refused_before_anything_is_changed(
    eight: list[Replica], tmp_path: Path
) -> None:
    before, after = farm_of(eight, "0"), farm_of(eight, "1")
    state = tmp_path / "other.json"
    state.write_text("something else")
    with Farm.open(before) as farm:
        farm.insert([("k", 1.0, "m")])
    with pytest.raises(InvalidInput, match="not the state"):
        reshard(before, after, state=state)
    assert set(eight[0].client.scan_iter()) == {b"k+"}
    reshard(before, after, begin)
    with pytest.raises(InvalidInput, match="not the state"):
        reshard(before, after, lambda resharder: resharder.abort(), state=state)
    assert state.read_text() == "something else"


def test_a_refused_move_tells_of_the_other_without_its_password(eight: list[Replica]) -> None:
    before, after = farm_of(eight, "0"), farm_of(eight, "1")
    with Farm.open(before) as farm:
        farm.insert([("k", 1.0, "m")])
    reshard(before, after.replace("unix://", "unix://default:secret@"), begin)
    with pytest.raises(ReshardRefused) as refused:
        reshard(before, farm_of(eight, "2"))
    assert f"a move to {after!r} is under way" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_move_can_be_given_up(eight: list[Replica]) -> None:
    before, after = farm_of(eight, "01"), farm_of(eight, "012")
    with Farm.open(before) as farm:
        fill(farm, random.Random(5))
        expected = truth(eight, before)
        with pytest.raises(ReshardRefused, match="no move"):
            reshard(before, after, lambda resharder: resharder.abort())
        reshard(before, after, begin)
        reshard(before, after, lambda resharder: resharder.abort())
        farm.select(KEYS)
        assert_lies(eight, before, expected)
        eight[2].client.flushdb()
        reshard(before, after)
        assert_lies(eight, after, expected)


def test_what_would_do_harm_is_refused_before_anything_is_changed(eight: list[Replica]) -> None:
    before = farm_of(eight, "0")
    with Farm.open(before) as farm:
        farm.insert([("k", 1.0, "m")])
    eight[1].client.set("something", "else")
    with pytest.raises(ReshardRefused, match="empty it"):
        reshard(before, farm_of(eight, "1"))
    with pytest.raises(ReshardRefused, match="all instances"):
        reshard(before, f"{before};127.0.0.1:1")
    assert set(eight[0].client.scan_iter()) == {b"k+"}


def test_a_dry_run_estimates_and_changes_nothing(eight: list[Replica]) -> None:
    before = farm_of(eight, "01")
    with Farm.open(before) as farm:
        farm.insert([(key, 1.0, "m") for key in KEYS])
    estimate: Estimate = reshard(before, farm_of(eight, "2"), lambda r: r.estimate())
    assert estimate == Estimate(len(KEYS), len(KEYS), 1.0, len(KEYS) / 1_000_000)
    assert reshard(before, before, lambda r: r.estimate()).copied == 0
    some: Estimate = reshard(before, farm_of(eight, "012"), lambda r: r.estimate())
    assert 0 < some.copied < len(KEYS)
    assert not eight[0].client.exists("hw:{timelines}")


def test_an_estimate_sees_timelines_wherever_its_sample_begins(
    eight: list[Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, end, client = farm_of(eight, "0"), 2**32 - 1, eight[0].client
    with Farm.open(before) as farm:
        farm.insert([(key, 1.0, "m") for key in KEYS])
    # Nothing is left where a scan from the end looks.
    gone = client.scan(end, count=1000)[1]
    if gone:
        client.delete(*gone)
    left = len(KEYS) - len(gone)
    assert left > 0
    assert client.scan(end, count=1000)[1] == []
    monkeypatch.setattr(random.Random, "getrandbits", lambda _self, _bits: end)
    estimate: Estimate = reshard(before, farm_of(eight, "1"), lambda r: r.estimate())
    assert (estimate.copied, estimate.share) == (left, 1.0)


def test_the_command_moves_and_tells(eight: list[Replica]) -> None:
    before, after = farm_of(eight, "0"), farm_of(eight, "1")
    with Farm.open(before) as farm:
        farm.insert([(key, 1.0, "m") for key in KEYS])
    words = ["timeline", "reshard", "--instances", before, "--to", after]
    dry = run(None, *words, "--dry-run")
    assert dry.out == "about 60 timelines to compare, about 60 of them to copy (100%), about 0 s\n"
    assert run(None, *words, "--dry-run", "--abort").code == 1
    assert run(None, *words, "--abort").code == 1
    moved = run(None, *words, "--rate", "100000")
    assert moved.code == 0
    assert moved.out.startswith("compared 60 timelines, copied 60 elements, cleaned 0")
    assert "is no longer used" in moved.out
    assert run(None, *words, "--json").row["keys"] == 0
