"""Any order of writes, evictions, compactions, restarts and crashes gives the same rows once.

The model is a dict of offsets for each partition. A message must be read exactly once unless it was
taken away before the query came to it; nothing else may be read, and losses are told as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from pyspark.sql import SparkSession

import headwater
from tests.support.entries import entries
from tests.support.examples import EXAMPLES, MODEL_SETTINGS, patient
from tests.support.spark.engine import Engine
from tests.support.spark.harvest import Harvest
from tests.support.stores import Stores

PARTITIONS = 2
SIZES = st.sampled_from([1, 7, 8, 9, 300, 999, 1001, 2500])


class ReadMachine(RuleBasedStateMachine):
    """A topic that changes in every way, and a query that reads it meanwhile."""

    url: ClassVar[str]
    count = 0

    def __init__(self) -> None:
        super().__init__()
        ReadMachine.count += 1
        self.hw = headwater.connect(self.url)
        self.name = f"model-{ReadMachine.count}-{id(self)}"
        self.topic = self.hw.topic(self.name, PARTITIONS)
        self.there: list[dict[int, tuple[str, bytes]]] = [{} for _ in range(PARTITIONS)]
        self.read: set[tuple[int, int]] = set()
        self.written = 0
        self.query = Engine(url=self.url, topic=self.name, failOnDataLoss=False)

    def teardown(self) -> None:
        self.topic.delete()
        self.hw.close()

    @rule(size=SIZES, tags=st.sampled_from([2, 5, 400]))
    def write(self, size: int, tags: int) -> None:
        rows = entries(size, self.written + 1, tags)
        self.written += size
        for place, offsets in self.topic.write_many(rows).items():
            mine = [row for row in rows if self.topic.partition_of(row[0]) == place]
            self.there[place] |= dict(zip(offsets, mine, strict=True))

    @rule(place=st.integers(0, PARTITIONS - 1), share=st.floats(0, 1))
    def evict(self, place: int, share: float) -> None:
        stream = self.topic.partition(place)
        info = stream.info()
        limit = info.first + round(share * (info.last - info.first))
        stream.evict(limit)
        self.there[place] = {o: row for o, row in self.there[place].items() if o > limit}

    @rule(place=st.integers(0, PARTITIONS - 1))
    def compact(self, place: int) -> None:
        self.topic.partition(place).compact()
        rows = self.there[place]
        newest = {tag: offset for offset, (tag, _) in sorted(rows.items())}
        self.there[place] = {offset: rows[offset] for offset in newest.values()}

    @rule(place=st.integers(0, PARTITIONS - 1))
    def seal(self, place: int) -> None:
        self.topic.partition(place).seal()

    @rule(most=st.sampled_from([None, 10, 700, 5000]), parts=st.sampled_from([1, 3, 11]))
    def restart(self, most: int | None, parts: int) -> None:
        self.query.options.pop("maxOffsetsPerTrigger", None)
        if most is not None:
            self.query.options["maxOffsetsPerTrigger"] = str(most)
        self.query.restart(minPartitions=parts)

    @rule()
    def plan_and_crash(self) -> None:
        """Plan a micro-batch and run its tasks, then lose all of it but the plan."""
        if self.query.planned is None and self.query.plan():
            self.query.read()
        self.query.restart()

    @rule(batches=st.integers(1, 3))
    def go_on(self, batches: int) -> None:
        for _ in range(batches):
            if self.query.planned is not None or self.query.plan():
                before = len(self.query.rows)
                self.query.finish()
                self.check(self.query.rows[before:])

    @rule()
    def catch_up(self) -> None:
        while self.query.planned is not None or self.query.plan():
            self.go_on(1)
        unread = [
            (place, offset)
            for place, rows in enumerate(self.there)
            for offset in rows
            if (place, offset) not in self.read
        ]
        assert unread == []

    def check(self, rows: list[tuple[int, int, str, bytes]]) -> None:
        for place, offset, tag, value in rows:
            assert (place, offset) not in self.read, "read twice"
            assert self.there[place].get(offset) == (tag, value), "read what is not there"
            self.read.add((place, offset))

    @invariant()
    def a_batch_read_gives_what_is_there(self) -> None:
        whole = Engine(url=self.url, topic=self.name)
        if self.written:
            whole.run()
        expected = [
            (place, offset, *row)
            for place, rows in enumerate(self.there)
            for offset, row in sorted(rows.items())
        ]
        assert sorted(whole.rows) == expected


@patient
@pytest.mark.parametrize("kind", ["embedded", pytest.param("cluster", marks=pytest.mark.cluster)])
def test_every_message_is_read_once(stores: Stores, kind: str) -> None:
    ReadMachine.url = stores.url(kind)
    # Each example reads the whole topic after every step.
    fewer = settings(MODEL_SETTINGS, max_examples=-(-EXAMPLES // 3))
    run_state_machine_as_test(ReadMachine, settings=fewer)


def test_spark_itself_reads_every_message_once(
    spark: SparkSession,
    embedded_url: str,
    make_embedded_stream: Callable[[int], headwater.Stream],
    tmp_path: Path,
) -> None:
    stream = make_embedded_stream(3000)
    harvest = Harvest(spark, tmp_path, embedded_url, stream=stream.name, failOnDataLoss=False)
    harvest.run(maxOffsetsPerTrigger=1700, minPartitions=3)
    stream.write_many(entries(2000, 3001))
    stream.evict(3500)
    stream.write_many(entries(1000, 5001, tags=1000))
    stream.compact()
    harvest.run(maxOffsetsPerTrigger=1200)
    expected = [*range(1, 3001), *range(5001, 6001)]
    assert harvest.offsets() == expected
