"""Clusters that differ are brought to one state, and all of it is counted."""

from __future__ import annotations

from typing import Any

import pytest

from headwater import AllReplicasFailed, QuorumFailed
from headwater.timeline import State, Tally
from headwater.timeline.farm.reading import READ_STRATEGIES
from headwater.timeline.metrics import COUNTERS, DURATIONS
from tests.support.farms import DEAD, OpenFarm, Replica, members


@pytest.mark.parametrize("strategy", [name for name in READ_STRATEGIES if name != "SendOneReadOne"])
def test_reads_repair_what_they_see_to_differ(
    open_: OpenFarm, three: list[Replica], strategy: str
) -> None:
    """Ties, negative scores and deletes alike; nothing comes back."""
    one, two = open_(three[0].url), open_(three[1].url)
    one.insert([("k", -1, "neg"), ("k", 7, "tie"), ("k", 3, "gone"), ("k", 2, "behind")])
    two.delete([("k", 7, "tie"), ("k", 4, "gone")])
    two.insert([("k", 5, "behind")])
    farm = open_(read_strategy=strategy)
    farm.select(["k"])
    farm.settle()
    truth = {
        b"neg": State(-1, False),
        b"tie": State(7, True),
        b"gone": State(4, True),
        b"behind": State(5, False),
    }
    assert [replica.states(b"k") for replica in three] == [truth] * 3


def test_an_element_that_newer_ones_push_out_goes_with_the_next_repair(
    open_: OpenFarm, three: list[Replica]
) -> None:
    """A cluster that lost everything takes an insert that the others know to be too old."""
    farm = open_(max_size=3)
    farm.delete([("k", 1, "old"), ("k", 2, "x"), ("k", 3, "y")])
    farm.insert([("k", 4, "m")])
    farm.settle()
    three[2].client.flushdb()
    open_(three[2].url, max_size=3).insert([("k", 1, "old")])
    assert members(farm) == ["m"]
    assert farm.score([("k", "old")]) == {("k", "old"): None}
    farm.settle()
    assert three[2].states(b"k") == three[0].states(b"k")


def test_repair_of_a_key_brings_tombstones_that_no_read_sees(
    open_: OpenFarm, three: list[Replica]
) -> None:
    open_(three[0].url).delete([("k", 1, f"m{i}") for i in range(2500)])
    farm = open_()
    assert farm.repair(["k", "none"]) == (2, 2500, 2500, 5000, 0)
    assert farm.repair(["k", "none"]) == (2, 2500, 0, 0, 0)
    assert three[2].states(b"k") == three[0].states(b"k")


def test_repairs_can_be_left_out_or_limited(open_: OpenFarm, three: list[Replica]) -> None:
    open_(three[0].url).insert([("k", i, f"m{i}") for i in range(10)])
    for strategy, left, rate in (("NoRepairs", 0, 9), ("RateLimitedRepairs", 4, 4)):
        tally = Tally()
        farm = open_(repair_strategy=strategy, repair_rate=rate, metrics=tally)
        assert len(members(farm)) == 10
        farm.settle()
        assert len(three[1].states(b"k")) == left
        assert tally.counts["repair_discarded"] == 10 - left
        assert tally.counts["select_repair_needed"] == 10
        assert tally.counts["repair_write_success"] == 2 * left


def test_every_figure_is_counted(open_: OpenFarm, three: list[Replica]) -> None:
    tally, horizon = Tally(), -5.0
    words: dict[str, Any] = {"metrics": tally, "max_size": 3, "horizon": lambda: horizon}
    a, b, _ = (replica.url for replica in three)
    open_(a, max_size=3).insert([("k", i, f"m{i}") for i in (1, 2, 3)])
    farm = open_(**words)
    farm.select(["k", "j"])
    farm.settle()
    assert tally.counts["repair_write_success"] == 6
    horizon = 3.0
    farm.insert([("k", 9, "n"), ("k", 9, "n"), ("k", 1, "o")])
    farm.insert([("k", i, f"n{i}") for i in (10, 11, 12)])
    farm.delete([("k", 12, "n12")])
    farm.repair(["k"])
    farm.settle()
    lone = open_(f"{a};{DEAD}", write_quorum=2, **words)
    for verb in (lone.insert, lone.delete):
        with pytest.raises(QuorumFailed):
            verb([("k", 20, "x")])
    lone.select(["k"])
    lone.repair(["k"])
    lone.insert([])
    open_(a, **words).insert([("k", 30, "y")])
    open_(f"{a};{b}", repair_strategy="NoRepairs", **words).select(["k"])
    for rate in (0, 9):
        # The one cluster that may be asked is down.
        farm = open_(DEAD, read_strategy="SendVarReadFirstLinger", read_rate=rate, **words)
        with pytest.raises(AllReplicasFailed):
            farm.select(["k"])
    rare = {"repair_write_failure", "repair_check_redundant"}
    assert {name for name in COUNTERS if not tally.counts[name]} == rare
    assert [name for name in DURATIONS if not tally.times[name][0]] == []
    found = {name: tally.counts[name] for name in ("insert_record_count", "write_rejected")}
    assert found == {"insert_record_count": 8, "write_rejected": 1}
