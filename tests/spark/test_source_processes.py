"""Python processes of streaming queries: forked from one parent, each with an end of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headwater
from headwater import Stream
from headwater.spark.engine.processes import SOURCE_DAEMON
from headwater.spark.queries.status import query_statuses
from tests.support.processes import children
from tests.support.servers import until
from tests.support.spark.standalone import environment

# A session whose Java asks for a parent that is not there, as if Python found us by Spark's files.
WITHOUT_PARENT = """
import sys
from headwater.spark import session
from headwater.spark.engine import optimizer_rule

sources = optimizer_rule.java_sources()
sources["ForkedRunner.java"] = sources["ForkedRunner.java"].replace("source_daemon", "no_daemon")
optimizer_rule.java_sources = lambda: sources
spark = session("local[1]", **{"spark.log.level": "INFO"})
read = spark.readStream.format("headwater").options(url=sys.argv[1], stream=sys.argv[2]).load()
write = read.writeStream.format("memory").queryName("rows").trigger(availableNow=True)
write.option("checkpointLocation", sys.argv[3]).start().awaitTermination()
print(spark.table("rows").count())
"""


class Queries:
    """Queries over one stream that go on and on, and the processes of their sources."""

    def __init__(self, spark: SparkSession, url: str, folder: Path, stream: str) -> None:
        self.spark = spark
        self.url = url
        self.folder = folder
        self.stream = stream
        # Processes of queries of other tests.
        self._others = {child for pid in self._parents() for child in children(pid)}

    def start(self, name: str) -> StreamingQuery:
        """Start a query under a name."""
        read = self.spark.readStream.format("headwater").options(url=self.url, stream=self.stream)
        write = read.load().writeStream.format("noop").queryName(name)
        return write.option("checkpointLocation", str(self.folder / name)).start()

    def parent(self) -> int:
        """Return the process that sources of these queries are forked from.

        Spark has a parent for each environment of Python that its queries had.
        """
        (parent,) = [pid for pid in self._parents() if set(children(pid)) - self._others]
        return parent

    def _parents(self) -> list[int]:
        jvm = self.spark._jvm
        assert jvm is not None
        found = children(jvm.java.lang.ProcessHandle.current().pid())
        return [pid for pid, words in found.items() if SOURCE_DAEMON in words]

    def has_read(self, query: StreamingQuery, offsets: int) -> None:
        """Wait until a query has read so far."""
        until(lambda: sum(p["numInputRows"] for p in query.recentProgress) == offsets, 200)

    def state(self, query: StreamingQuery) -> str:
        """Return what the store knows of a query."""
        with headwater.connect(self.url) as hw:
            found = {one.query: one.state for one in hw.store.run(query_statuses())}
        return found.get(str(query.id), "")


@pytest.fixture
def queries(
    spark: SparkSession,
    embedded_url: str,
    make_embedded_stream: Callable[[int], Stream],
    tmp_path: Path,
) -> Queries:
    return Queries(spark, embedded_url, tmp_path, make_embedded_stream(10).name)


def test_each_query_has_a_process_of_one_parent_and_survives_what_happens_to_others(
    queries: Queries,
) -> None:
    one, other = queries.start("one"), queries.start("other")
    try:
        for query in (one, other):
            queries.has_read(query, 10)
        parent = queries.parent()
        before = set(children(parent))
        assert len(before) >= 2
        one.stop()
        until(lambda: queries.state(one) == "ended")
        until(lambda: len(before - set(children(parent))) == 1)
        # Those that live have sockets of their own; only a new query needs the parent.
        os.kill(parent, signal.SIGKILL)
        with headwater.connect(queries.url) as hw:
            hw.stream(queries.stream).write("more", b"")
        queries.has_read(other, 11)
        again = queries.start("one")
        try:
            until(lambda: again.lastProgress is not None, 200)
            assert queries.parent() != parent
            (process,) = children(queries.parent())
            os.kill(process, signal.SIGKILL)
            with pytest.raises(StreamingQueryException):
                again.awaitTermination(240)
        finally:
            again.stop()
    finally:
        one.stop()
        other.stop()
    until(lambda: queries.state(other) == "ended")


@pytest.mark.long
def test_where_the_parent_cannot_start_a_query_has_a_python_of_its_own(
    embedded_url: str, make_embedded_stream: Callable[[int], Stream], tmp_path: Path
) -> None:
    words = [embedded_url, make_embedded_stream(10).name, str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PARENT, *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "10"), done.stderr
    assert "starts a Python of its own" in done.stderr
