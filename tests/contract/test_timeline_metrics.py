"""A farm reports what it does to the installed instrument; Roshi's metrics follow from that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headwater import AllReplicasFailed, QuorumFailed
from headwater.kernel.instrument import installed
from headwater.timeline import Tally
from headwater.timeline.metrics import COUNTERS, DURATIONS
from tests.support.farms import DEAD, OpenFarm, Replica
from tests.support.instruments import Recorder

OPERATIONS = {"farm.insert", "farm.delete", "farm.select", "farm.score", "farm.repair"}


def test_every_operation_is_reported_with_its_farm_how_much_and_its_outcome(
    open_: OpenFarm, three: list[Replica], told: Recorder
) -> None:
    url = three[1].url
    farm, secret = open_(url), open_(f"{url};redis://ada:secret@{DEAD}", write_quorum=2)
    farm.insert([("k", 1, "a"), ("k", 2, "b"), ("j", 1, "a")])
    farm.delete([("k", 3, "a")])
    farm.select(["k", "j", "none"])
    farm.score([("k", "a"), ("k", "x")])
    farm.repair(["k"])
    with pytest.raises(QuorumFailed):
        secret.insert([("k", 4, "c")])
    secret.settle()
    events = [event for event in told.events if event.name in OPERATIONS]
    shown = f"{url};redis://{DEAD}"
    assert [(e.name, e.object, e.outcome, e.messages, e.error) for e in events] == [
        ("farm.insert", url, "ok", 3, ""),
        ("farm.delete", url, "ok", 1, ""),
        ("farm.select", url, "ok", 2, ""),
        ("farm.score", url, "ok", 2, ""),
        ("farm.repair", url, "ok", 1, ""),
        ("farm.insert", shown, "failed", 1, "QuorumFailed"),
    ]
    assert all(event.seconds > 0 for event in events)
    assert told.counts["farm.write_applied", url] == 4


@pytest.fixture
def tally() -> Iterator[Tally]:
    with installed(tally := Tally()):
        yield tally


def test_every_metric_is_counted(open_: OpenFarm, three: list[Replica], tally: Tally) -> None:
    horizon = -5.0
    words: dict[str, Any] = {"max_size": 3, "keep": 3, "horizon": lambda: horizon}
    a, b, _ = (replica.url for replica in three)
    open_(a, max_size=3, keep=3).insert([("k", i, f"m{i}") for i in (1, 2, 3)])
    farm = open_(**words)
    farm.select(["k", "j"])
    farm.settle()
    assert tally.counts["repair_write_success"] == 6
    horizon = 3.0
    farm.insert([("k", 9, "n"), ("k", 9, "n"), ("k", 1, "o")])
    farm.insert([("k", i, f"n{i}") for i in (10, 11, 12)])
    farm.delete([("k", 12, "n12")])
    three[0].client.zadd("k+", {"over the size": 4, "below the horizon": 2})
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
    assert found == {"insert_record_count": 11, "write_rejected": 1}
