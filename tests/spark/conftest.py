"""One Spark session per test process, and the stores it reads: embedded, and a cluster of three.

The session is small: two cores of this machine, little memory, no pages. A task is tried three
times, as on a cluster. ``make_stream`` and ``make_topic`` write what a test reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

import headwater
from headwater.spark import session
from headwater.spark.engine.failures import translating_errors
from tests.support.entries import entries
from tests.support.spark.sql_sinks import Table
from tests.support.spark.standalone import Standalone
from tests.support.spark.table_reads import Read
from tests.support.stores import Stores

SMALL = {
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}
# Reading and writing on a cluster of stores, test by test, is for the long run; archives, queues
# and compaction run on one in any case.
STORES = ["embedded", pytest.param("cluster", marks=[pytest.mark.cluster, pytest.mark.long])]

# Every JVM of these tests lives for seconds or minutes: compiling each method to its best costs
# more than it saves, and takes the cores from the tests.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

HERE = Path(__file__).parent
# A test that is stopped in the middle of a call of the JVM leaves a session that answers no further
# test rightly, so each is given the time that a busy machine takes.
PATIENCE_S = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(PATIENCE_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Code of Spark's processes that a test has called in this one may have left it.
    os.environ.pop("SPARK_HIDE_TRACEBACK", None)
    warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    spark = session("local[2, 3]", app_name="tests", **SMALL, **warehouse)
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def standalone() -> Iterator[Standalone]:
    """A Spark cluster of two workers, for programs that are submitted to it."""
    with Standalone() as cluster:
        yield cluster


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest, stores: Stores) -> str:
    return stores.url(request.param)


@pytest.fixture
def embedded_url(stores: Stores) -> str:
    """One store, for what does not depend on the kind of it."""
    return stores.url("embedded")


@pytest.fixture
def embedded(embedded_url: str) -> Iterator[headwater.Headwater]:
    with headwater.connect(embedded_url) as hw:
        yield hw


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A directory for archives."""
    return str(tmp_path / "archive")


@pytest.fixture
def make_stream(hw: headwater.Headwater, name: str) -> Callable[..., headwater.Stream]:
    """Write a stream of ``count`` messages in batches of ``size``; see tests.support.entries."""

    def make(count: int, size: int = 700, tags: int = 7) -> headwater.Stream:
        stream = hw.stream(name)
        for first in range(1, count + 1, size):
            stream.write_many(entries(min(size, count + 1 - first), first, tags))
        return stream

    return make


@pytest.fixture
def make_embedded_stream(
    embedded: headwater.Headwater, name: str
) -> Callable[[int], headwater.Stream]:
    """Write a stream of the embedded store; see tests.support.entries."""

    def make(count: int) -> headwater.Stream:
        stream = embedded.stream(name)
        stream.write_many(entries(count))
        return stream

    return make


@pytest.fixture
def many_kinds(hw: headwater.Headwater, name: str) -> headwater.Stream:
    """A stream with nodes of all kinds, and with a tail."""
    stream = hw.stream(name)
    # Fast to open, as they are written.
    stream.write_many(entries(1000))
    tags = pa.array([f"tág-{i % 5}" for i in range(700)])
    values = pa.array([b"x" * (i % 7) for i in range(700)], pa.binary())
    times = pa.array([1_700_000_000_000 + 977 * i for i in range(700)], pa.int64())
    stream.append(pa.RecordBatch.from_arrays([tags, values, times], names=["tag", "value", "time"]))
    stream.write_many([("", b""), ("large", b"\0\xff" * 300_000)] + [("k", b"")] * 600)
    # What compaction leaves: offsets of its own, and few of them.
    stream.compact()
    stream.write_many(entries(2000, tags=2000))
    # Written one by one, and packed but not sealed.
    stream.write("one", b"by one")
    stream.write_many(entries(30))
    return stream


@pytest.fixture
def make_topic(hw: headwater.Headwater, name: str) -> Callable[..., headwater.Topic]:
    """Write a topic of ``count`` messages over all partitions; see tests.support.entries."""

    def make(count: int, partitions: int = 3, size: int = 700, tags: int = 50) -> headwater.Topic:
        topic = hw.topic(name, partitions)
        for first in range(1, count + 1, size):
            topic.write_many(entries(min(size, count + 1 - first), first, tags))
        return topic

    return make


@pytest.fixture
def source(spark: SparkSession, store_url: str) -> Callable[..., DataFrameReader]:
    """Begin a batch read of the store: ``source(stream=name, minPartitions=4).load()``."""

    def source(**options: object) -> DataFrameReader:
        reader = spark.read.format("headwater").option("url", store_url)
        for key, value in options.items():
            reader = reader.option(key, str(value))
        return reader

    return source


@pytest.fixture
def read_table(spark: SparkSession, database_url: str) -> Read:
    """Read a table or query of the database by Spark."""

    def read_table(schema: str | None = None, **options: object) -> DataFrame:
        reader = spark.read.format("headwater_table").option("url", database_url)
        for key, value in options.items():
            reader = reader.option(key, str(value))
        with translating_errors():
            return (reader.schema(schema) if schema else reader).load()

    return read_table


@pytest.fixture
def run_sql(engine: sa.Engine) -> Callable[..., None]:
    """Run statements in one transaction of the database."""

    def run_sql(*statements: str) -> None:
        with engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    return run_sql


@pytest.fixture
def table(database_url: str, engine: sa.Engine) -> Table:
    """A table of the database, for the SQL sink to write to."""
    table = Table(database_url, engine)
    table.make("CREATE TABLE totals (ride varchar(20) PRIMARY KEY, distance bigint, note text)")
    return table
