"""Whatever is killed in the middle of a read, its outcome is what the log holds, once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zlib import crc32

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody who uses Spark calls it

import headwater
from tests.support.servers import Server
from tests.support.spark.gate import Gate
from tests.support.spark.harvest import Harvest
from tests.support.spark.standalone import PROGRAMS, environment

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]
# Bytes that do not compress, so that a task needs several replies of the store.
COUNT = 50_000
VALUES = [random.Random(number).randbytes(250) for number in range(COUNT)]
MIDDLE = 5 * 1024 * 1024


@pytest.fixture
def store() -> Iterator[Server]:
    with Server(tcp=True, fsync="always") as server:
        with headwater.connect(server.url) as hw:
            for start in range(0, COUNT, 10_000):
                part = VALUES[start : start + 10_000]
                hw.stream("rides").write_many(
                    [(f"t{i % 9}", value) for i, value in enumerate(part)]
                )
        yield server


@pytest.fixture
def gate(store: Server) -> Iterator[Gate]:
    with Gate(store.port) as gate:
        gate.hold_after(MIDDLE)
        yield gate


@pytest.mark.parametrize("victim", ["worker", "store"])
def test_a_batch_read_survives(spark: SparkSession, store: Server, gate: Gate, victim: str) -> None:
    frame = spark.read.format("headwater").option("url", gate.url).option("stream", "rides").load()
    sums = frame.agg(F.count("*"), F.sum("offset"), F.sum(F.crc32("value")))
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(sums.first)
        assert gate.held.wait(60)
        if victim == "worker":
            os.kill(gate.reader(), signal.SIGKILL)
        else:
            store.kill()
            store.restart()
        gate.open()
        found = job.result(120)
    assert found is not None
    assert tuple(found) == (COUNT, COUNT * (COUNT + 1) // 2, sum(map(crc32, VALUES)))


@pytest.mark.long
def test_a_streaming_query_survives_its_driver(
    spark: SparkSession, store: Server, gate: Gate, tmp_path: Path
) -> None:
    words = [sys.executable, str(PROGRAMS / "stream_to_files.py"), gate.url, "rides", str(tmp_path)]
    driver = subprocess.Popen(words, env=environment(), start_new_session=True)
    try:
        assert gate.held.wait(120)
    finally:
        # The driver, its JVM and all their Python processes.
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    gate.open()
    with headwater.connect(store.url) as hw:
        readers = hw.stream("rides").info().readers
        assert 1 <= readers["files"] <= COUNT, "the log waits for a query that is down"
    # The next one goes on from the checkpoint, whoever it is.
    harvest = Harvest(
        spark, tmp_path, store.url, stream="rides", groupId="files", maxOffsetsPerTrigger=20_000
    )
    harvest.run()
    rows = harvest.rows()
    assert [row.offset for row in rows] == list(range(1, COUNT + 1))
    assert [bytes(row.value) for row in rows] == VALUES
