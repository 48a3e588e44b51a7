"""A publish happens once and as a whole, while publishers and servers are killed."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import headwater
from headwater.log import node, retention, writing
from headwater.store.store import Store
from tests.support.publishers import numbers
from tests.support.servers import Cluster, Server, until
from tests.support.stepping import Stepper, abandon_after, handle_of, take_turns
from tests.support.zygote import Zygote

pytestmark = pytest.mark.fault
LONG = int(os.environ.get("HEADWATER_LONG") or 1)
SEED = int(os.environ.get("HEADWATER_SEED") or 1)
ROWS = 1500
EPOCHS = 8 * LONG


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote("tests.support.publishers") as zygote:
        yield zygote


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """Where a publisher notes the last epoch that was acknowledged, as Spark notes its commits."""
    return tmp_path / "epoch"


def next_epoch(page: Path) -> int:
    text = page.read_text() if page.exists() else ""
    return int(text) + 1 if text else 0


def values(stream: headwater.Stream) -> list[int]:
    return [int(m.value) for m in stream.read(1, 1_000_000) if m and m.tag == "p"]


def expected(epochs: int) -> list[int]:
    return [n for epoch in range(epochs) for n in numbers(epoch, ROWS)]


@pytest.mark.parametrize("store_url", ["plain", "cluster"], indirect=True)
def test_publishers_may_die_at_any_moment(
    zygote: Zygote, hw: headwater.Headwater, store_url: str, name: str, page: Path
) -> None:
    chance = random.Random(SEED)
    stream = hw.stream(name)
    order = {"stream": name, "rows": ROWS, "last": EPOCHS - 1, "page": str(page)}
    killed = 0
    while (first := next_epoch(page)) < EPOCHS:
        publisher = zygote.start("", store_url, first=first, **order)
        there, end = len(values(stream)), stream.info().last
        more = chance.randrange(1, 2 * ROWS)
        if there + more < EPOCHS * ROWS:
            until(lambda: stream.info().last >= end + more)  # noqa: B023  this round's
            os.kill(publisher, signal.SIGKILL)
        killed += zygote.wait(publisher) == -signal.SIGKILL
        stream.write("other", b"")
        found = values(stream)
        assert found == expected(EPOCHS)[: len(found)]
    assert values(stream) == expected(EPOCHS)
    assert killed > 2


@pytest.mark.parametrize("kind", ["plain", "cluster"])
def test_a_server_may_die_in_the_middle_of_a_publish(
    zygote: Zygote, kind: str, name: str, page: Path
) -> None:
    chance = random.Random(SEED)
    made = Cluster(fsync="always") if kind == "cluster" else Server(fsync="always")
    with made as store, headwater.connect(store.url) as hw:
        servers = store.nodes if isinstance(store, Cluster) else [store]
        stream = hw.stream(name)
        order = {"stream": name, "rows": ROWS, "last": EPOCHS - 1, "page": str(page)}
        publisher = zygote.start("", store.url, first=0, **order)
        for part in (0.2, 0.5, 0.8):
            goal = part * EPOCHS * ROWS + chance.randrange(ROWS)
            until(lambda: stream.info().last >= goal)  # noqa: B023  this round's
            for server in servers:
                server.kill()
            for server in servers:
                server.restart()
        assert zygote.wait(publisher) == 0
        assert values(stream) == expected(EPOCHS)
        assert stream.info().last == EPOCHS * ROWS


@pytest.fixture
def tiny_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "NODE_MESSAGES", 2)
    monkeypatch.setattr(writing, "_FIT_MESSAGES", 2)


def stage(stream: headwater.Stream, into: str, rows: range) -> None:
    values = [b"%d" % n for n in rows]
    stream.stage(pa.table({"tag": ["p"] * len(values), "value": values}), into)


@pytest.mark.parametrize("store_url", ["plain"], indirect=True)
@pytest.mark.usefixtures("tiny_nodes")
@pytest.mark.parametrize("finisher", ["the same", "another attempt", "the next", "housekeeper"])
def test_a_publish_that_stops_anywhere_is_finished(
    hw: headwater.Headwater, store: Store, name: str, finisher: str
) -> None:
    for calls in range(60):
        stream = hw.stream(f"{name}-{calls}")
        stream.write("other", b"")
        for task in range(3):
            stage(stream, f"t{task}", range(task * 401, (task + 1) * 401))
        names = ["t0", "t1", "t2"]
        make = writing.publish(handle_of(stream.name), names, "p", 1)
        over = abandon_after(store, make, calls)
        if finisher == "the same" or not calls:
            stream.publish(*names, producer="p", sequence=1)
        if finisher == "another attempt":
            stage(stream, "again", range(1203))
            stream.publish("again", producer="p", sequence=1)
        elif finisher == "the next":
            stage(stream, "n", range(1203, 1250))
            stream.publish("n", producer="p", sequence=2)
        elif finisher == "housekeeper":
            hw.store.run(retention.keep(handle_of(stream.name), left_ms=0))
        assert values(stream) == list(range(1250 if finisher == "the next" else 1203))
        if over:
            assert calls > 3, "there were places to stop at"
            return
    raise AssertionError("a publish takes more calls than this tries")


@pytest.mark.parametrize("store_url", ["plain"], indirect=True)
@pytest.mark.usefixtures("tiny_nodes")
@pytest.mark.parametrize("seed", range(6 * LONG))
def test_publishers_housekeepers_and_writers_that_take_turns_publish_once(
    seed: int, hw: headwater.Headwater, store: Store, name: str
) -> None:
    chance = random.Random(seed)
    stream = hw.stream(name)
    done: list[int] = []
    for epoch in range(4):
        rows = range(len(done), len(done) + chance.choice([3, 200, 600]))
        names = []
        for task in range(3):
            part = rows[task * len(rows) // 3 : (task + 1) * len(rows) // 3]
            names.append(f"{epoch}.{task}")
            stage(stream, names[-1], part)
        stage(stream, f"{epoch}.again", rows)
        publishes = [
            writing.publish(handle_of(name), names, "p", epoch),
            writing.publish(handle_of(name), names, "p", epoch),
            writing.publish(handle_of(name), [f"{epoch}.again"], "p", epoch),
        ]
        steppers = [Stepper(store, publish) for publish in publishes]
        steppers.append(Stepper(store, retention.keep(handle_of(name), left_ms=0)))
        steppers[chance.randrange(3)].step()
        stream.write_many([("other", b"")] * chance.randrange(1, 5))
        take_turns(steppers, chance)
        assert len({stepper.result for stepper in steppers[:3]}) == 1
        done += rows
        assert values(stream) == done
