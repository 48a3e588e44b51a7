"""Every message of a topic has its effect once, while its consumers and its store fail."""

from __future__ import annotations

import contextlib
import random
import signal
from pathlib import Path

import pytest
import sqlalchemy as sa

from headwater import Headwater, LostFuture
from tests.support.consumer_processes import ConsumerProcesses
from tests.support.consumers import Desk, drain, effects, numbers
from tests.support.entries import entries
from tests.support.forwarder import Forwarder
from tests.support.servers import Server, until
from tests.support.stores import Stores

pytestmark = pytest.mark.fault

PARTITIONS = 3


@pytest.fixture
def store_url(stores: Stores) -> str:
    return stores.url("plain")


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_two_processes_that_share_a_topic_may_die_at_any_moment(
    consumers: ConsumerProcesses,
    engine: sa.Engine,
    hw: Headwater,
    name: str,
    seed: int,
) -> None:
    """Retention goes as far as it may meanwhile: a gap would end them with an error."""
    dice = random.Random(seed)
    topic = hw.topic(name, partitions=PARTITIONS)

    def start(manner: str) -> int:
        order = {"manner": manner, "partitions": PARTITIONS, "batch": dice.choice([3, 20, 100])}
        return consumers.start(**order)

    def applied() -> list[list[int]]:
        return [effects(engine, f"c/{place}") for place in range(PARTITIONS)]

    manners = ["sync", "async"]
    pids = [start(manner) for manner in manners]
    until(lambda: all(info.readers for info in topic.info()))
    last = 0
    for _ in range(3):
        for _ in range(dice.randint(1, 6)):
            size = dice.choice([1, 5, 40])
            topic.write_many(entries(size, last + 1, tags=30))
            last += size
        for place in range(PARTITIONS):
            topic.partition(place).retain(max_count=dice.choice([0, 10]))
        dying = dice.randrange(2)
        assert consumers.end(pids[dying], signal.SIGKILL) == -signal.SIGKILL
        pids[dying] = start(manners[dying])
    until(lambda: sum(map(len, applied())) >= last)
    assert [consumers.end(pid) for pid in pids] == [0, 0]
    assert applied() == [numbers(1, info.last) for info in topic.info()]
    assert [topic.partition(place).retain(max_count=0).held for place in range(3)] == [0, 0, 0]


def test_a_consumer_of_a_topic_is_told_in_which_partition_messages_were_lost(
    tmp_path: Path, name: str
) -> None:
    database = f"sqlite:///{tmp_path / 'app.db'}"
    with Server(tcp=True) as old, Server(tcp=True) as new, Forwarder(old.port) as door:
        url = f"redis://127.0.0.1:{door.port}"
        with contextlib.closing(Desk("sync", url, database, None)) as desk:
            topic = desk.hw.topic(name, partitions=PARTITIONS)
            topic.write_many(entries(60, tags=30))
            kept = [info.last for info in topic.info()]
            lost = topic.partition_of("lost")
            with new.client() as raw:
                raw.replicaof("127.0.0.1", str(old.port))
                for place, last in enumerate(kept):
                    key = f"hw:s:{{{name}/{place}}}"
                    until(lambda key=key, last=last: raw.hget(key, "last") == b"%d" % last)  # type: ignore[misc]
                raw.replicaof("NO", "ONE")
            topic.write_many([("lost", b"1"), ("lost", b"2")])
            reader = desk.consumer("c", topic)
            assert drain(reader) == 62
            door.switch(new.port)
            door.cut()
            for one in (reader, desk.consumer("c", topic)):
                with pytest.raises(LostFuture) as caught:
                    drain(one)
                assert caught.value.partition == lost
                assert (caught.value.stream, caught.value.first, caught.value.last) == (
                    *(f"{name}/{lost}", kept[lost] + 1, kept[lost] + 2),
                )
            assert reader.seek({lost: kept[lost] + 1}) == {lost: kept[lost] + 1}
            topic.write_many([("lost", b"1"), ("other", b"3")])
            assert drain(reader) == 2
