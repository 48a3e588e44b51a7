"""A streaming query reads every message once, across restarts, and says what it cannot read."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import headwater
from headwater import InvalidInput, Stream, Topic
from headwater.spark import register
from headwater.spark.engine.failures import translating_errors
from headwater.spark.engine.processes import SOURCE_DAEMON
from headwater.spark.queries.status import QueryStatus, ReadPosition, query_statuses
from tests.spark.conftest import STORES
from tests.support.entries import entries
from tests.support.processes import children
from tests.support.servers import until
from tests.support.spark.harvest import Harvest
from tests.support.spark.queries import finish, following

# What a reader promises on every kind of store is in test_planning.py; here Spark calls it.


@pytest.fixture
def harvest(spark: SparkSession, embedded_url: str, name: str, tmp_path: Path) -> Harvest:
    return Harvest(spark, tmp_path, embedded_url, stream=name)


def test_available_now_reads_what_is_there_and_a_restart_goes_on(
    harvest: Harvest, make_embedded_stream: Callable[[int], Stream]
) -> None:
    stream = make_embedded_stream(1500)
    query = harvest.run(maxOffsetsPerTrigger=600)
    assert [p["numInputRows"] for p in query.recentProgress] == [600, 600, 300]
    assert harvest.offsets() == list(range(1, 1501))
    stream.write_many(entries(250, 1501))
    harvest.run(minPartitions=3)
    rows = harvest.rows()
    assert [(row.tag, bytes(row.value)) for row in rows] == entries(1750)
    assert [row.offset for row in rows] == list(range(1, 1751))


def test_a_query_is_noted_in_its_store_with_what_waits_for_it(
    spark: SparkSession,
    embedded_url: str,
    make_embedded_stream: Callable[[int], Stream],
    name: str,
    tmp_path: Path,
) -> None:
    stream = make_embedded_stream(100)

    def status() -> QueryStatus:
        with headwater.connect(embedded_url) as hw:
            found = hw.store.run(query_statuses())
        (one,) = [one for one in found if one.name == f"copy {name}"]
        return one

    rows = following(spark, embedded_url, name, maxOffsetsPerTrigger=60)
    copy = {"url": embedded_url, "stream": f"{name}-copy", "queryName": f"copy {name}"}
    query = finish(rows, "headwater", tmp_path, **copy)
    until(lambda: status().state == "ended")
    found = status()
    assert (found.query, found.epoch, found.writes) == (str(query.id), 1, (f"{name}-copy",))
    assert (found.checkpoint, found.lag) == (str(tmp_path), 0)
    assert found.reads == (ReadPosition(name, 101, 0, 0),)
    ends = [progress["sources"][0]["latestOffset"] for progress in query.recentProgress]
    assert [(json.loads(end) if isinstance(end, str) else end)["behind"] for end in ends] == [40, 0]
    sources = [progress["sources"][0] for progress in query.recentProgress]
    assert {one["description"] for one in sources} == {f"headwater stream '{name}'"}
    metrics = [one["metrics"] for one in sources]
    assert all(int(one.pop("bytesRead")) > 100 for one in metrics)
    assert metrics == [
        {"offsetsBehind": behind, "offsetsBehind.0": behind} for behind in ("40", "0")
    ]
    stream.write_many(entries(5, 101))
    assert status().lag == 0, "nothing waits for a query that has ended"


def test_the_checkpoint_of_a_query_is_noted_wherever_it_writes(
    spark: SparkSession,
    embedded_url: str,
    make_embedded_stream: Callable[[int], Stream],
    name: str,
    tmp_path: Path,
) -> None:
    make_embedded_stream(3)
    place = tmp_path / "a place"
    query = finish(following(spark, embedded_url, name), "noop", place)
    with headwater.connect(embedded_url) as hw:
        found = {one.query: one.checkpoint for one in hw.store.run(query_statuses())}
    assert found[str(query.id)] == str(place)


@pytest.mark.parametrize("store_url", [STORES[-1]], indirect=True)
def test_a_topic_is_read_over_all_partitions(
    spark: SparkSession, store_url: str, tmp_path: Path, make_topic: Callable[..., Topic], name: str
) -> None:
    harvest = Harvest(spark, tmp_path, store_url, topic=name)
    # Neither the topic nor a message is there yet.
    harvest.run()
    assert harvest.rows() == []
    topic = make_topic(1000, partitions=3)
    query = harvest.run(maxOffsetsPerTrigger=400)
    assert [p["numInputRows"] for p in query.recentProgress] == [400, 400, 200]
    topic.write_many(entries(300, 1001, tags=50))
    harvest.run()
    rows = harvest.rows()
    assert sorted((row.tag, bytes(row.value)) for row in rows) == sorted(entries(1300, tags=50))
    assert {row.stream for row in rows} == {f"{name}/{place}" for place in range(3)}
    assert [info.last for info in topic.info()] == [
        max(row.offset for row in rows if row.partition == place) for place in range(3)
    ]


def test_a_query_waits_for_a_stream_that_is_not_there_yet(
    spark: SparkSession, harvest: Harvest, make_embedded_stream: Callable[[int], Stream]
) -> None:
    query = harvest.start()
    try:
        # Its process is forked from one that has imported all of it.
        until(lambda: SOURCE_DAEMON in started(spark), 200)
        stream = make_embedded_stream(10)
        until(lambda: harvest.offsets() == list(range(1, 11)), 200)
        stream.write("late", b"")
        until(lambda: harvest.offsets() == list(range(1, 12)))
        assert query.exception() is None
    finally:
        query.stop()


def started(spark: SparkSession) -> str:
    """Return what the JVM has started, with its arguments."""
    jvm = spark._jvm
    assert jvm is not None
    parent = jvm.java.lang.ProcessHandle.current().pid()
    return "\n".join(children(parent).values())


def test_evicted_messages_are_a_loss_that_is_told_exactly(
    harvest: Harvest, make_embedded_stream: Callable[[int], Stream]
) -> None:
    stream = make_embedded_stream(100)
    harvest.run()
    stream.write_many(entries(200, 101))
    stream.evict(150)
    with pytest.raises(StreamingQueryException, match=r"offsets 101 to 150 of stream .* evicted"):
        harvest.run()
    harvest.run(failOnDataLoss=False)
    assert harvest.offsets() == [*range(1, 101), *range(151, 301)]


def test_a_refused_option_is_told_in_one_line(
    spark: SparkSession, embedded_url: str, name: str, tmp_path: Path
) -> None:
    frame = spark.readStream.format("headwater").options(url=embedded_url, stream=name)
    writer = frame.option("endingOffsets", "5").load().writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    words = "'endingOffsets' means nothing in a streaming query"
    with pytest.raises(InvalidInput, match=words), translating_errors():
        query.awaitTermination()


# Checkpoints on a local disk: written as Hadoop writes them, without a process for each step.


SETTING = "fs.AbstractFileSystem.file.impl"
OURS = "headwater.LocalFiles"
HADOOPS = "org.apache.hadoop.fs.local.LocalFs"


@contextmanager
def files_of(spark: SparkSession, implementation: str) -> Iterator[None]:
    """Let checkpoints be written by another class for a while."""
    before = spark.conf.get(SETTING) or HADOOPS
    spark.conf.set(SETTING, implementation)
    try:
        yield
    finally:
        spark.conf.set(SETTING, before)


def ended_children(spark: SparkSession) -> int:
    """Return how many pages the ended child processes of the JVM have used: more for each one."""
    jvm: Any = spark._jvm
    facts = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/stat").read_text()
    return int(facts.rpartition(")")[2].split()[8])


def modes(folder: Path) -> dict[str, str]:
    """Return the permissions of all files below a directory; names that are random are left out."""
    found = {str(one.relative_to(folder)): one for one in folder.rglob("*")}
    return {name: stat.filemode(one.lstat().st_mode) for name, one in found.items()}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are counted in /proc")
def test_a_query_starts_no_process_for_its_files(
    spark: SparkSession,
    embedded_url: str,
    make_embedded_stream: Callable[[int], Stream],
    name: str,
    tmp_path: Path,
) -> None:
    make_embedded_stream(30)
    assert spark.conf.get(SETTING) == OURS
    rows = following(spark, embedded_url, name, maxOffsetsPerTrigger=10)
    used = {}
    # The first query of a session starts what all of them need.
    for place, which in (("first", OURS), (OURS, OURS), (HADOOPS, HADOOPS)):
        with files_of(spark, which):
            before = ended_children(spark)
            finish(rows, "noop", tmp_path / place)
            used[place] = ended_children(spark) - before
    assert used[OURS] == 0
    assert used[HADOOPS] > 0
    assert modes(tmp_path / OURS) == modes(tmp_path / HADOOPS)


def test_a_checkpoint_with_state_goes_on_whoever_wrote_it(
    spark: SparkSession,
    embedded_url: str,
    make_embedded_stream: Callable[[int], Stream],
    name: str,
    tmp_path: Path,
) -> None:
    """Tasks write the state."""
    stream = make_embedded_stream(20)
    seen = []
    for which in (OURS, HADOOPS, OURS):
        with files_of(spark, which):
            counts = following(spark, embedded_url, name).groupBy("tag").count()
            finish(counts, "memory", tmp_path / "state", "complete", queryName="totals")
        seen.append(spark.sql("SELECT sum(count) FROM totals").first())
        stream.write_many(entries(10, 1))
    assert [tuple(row or ()) for row in seen] == [(20,), (30,), (40,)]


def test_every_step_is_as_hadoops(spark: SparkSession, tmp_path: Path) -> None:
    assert steps(spark, OURS, tmp_path / "a") == steps(spark, HADOOPS, tmp_path / "b")


def steps(spark: SparkSession, implementation: str, folder: Path) -> list[object]:
    """Do what checkpoints and others do to files, and return what came of it."""
    jvm: Any = spark._jvm
    fs = jvm.org.apache.hadoop.fs
    state: Any = spark._jsparkSession
    settings = state.sessionState().newHadoopConf()
    settings.set(SETTING, implementation)
    context = fs.FileContext.getFileContext(jvm.java.net.URI("file:///"), settings)
    fields = fs.permission.FsPermission
    flags = jvm.java.util.EnumSet.of(fs.CreateFlag.CREATE, fs.CreateFlag.OVERWRITE)
    gateway: Any = spark.sparkContext._gateway
    no_options = gateway.new_array(fs.Options.CreateOpts, 0)
    overwrite = gateway.new_array(fs.Options.Rename, 1)
    overwrite[0] = fs.Options.Rename.OVERWRITE
    no_overwrite = gateway.new_array(fs.Options.Rename, 0)
    found: list[object] = []

    def path(name: str) -> Any:
        return fs.Path(f"file:{folder / name}")

    def write(name: str, text: str) -> None:
        out = context.create(path(name), flags, no_options)
        out.writeBytes(text)
        out.close()

    def tell(step: Callable[[], object]) -> None:
        """Note what a step returns or raises, and the files after it."""
        try:
            result = step()
        except Py4JJavaError as error:
            raised = error.java_exception
            result = raised.getClass().getName(), raised.getMessage().replace(str(folder), "")
        contents = {
            str(one.relative_to(folder)): one.read_bytes()
            for one in sorted(folder.rglob("*"))
            if one.is_file()
        }
        found.append((result, modes(folder), contents))

    folder.mkdir()
    tell(lambda: context.mkdir(path("x/y"), fields.getDirDefault(), True))
    (folder / "shared").mkdir()
    (folder / "shared").chmod(0o2770)
    # Files in such a directory have its group, and so has what is made in it.
    for mode in (0o755, 0o700, 0o1777):
        made = f"shared/{mode:o}"
        tell(lambda made=made: context.mkdir(path(made), fields.getDirDefault(), False))  # type: ignore[misc]
        tell(lambda made=made, mode=mode: context.setPermission(path(made), fields(mode)))  # type: ignore[misc]
    tell(lambda: write("x/one", "first"))
    tell(lambda: write("x/one", "second"))
    tell(lambda: context.setPermission(path("x/one"), fields(0o640)))
    tell(lambda: write("x/two", "other"))
    tell(lambda: context.rename(path("x/two"), path("x/one"), no_overwrite))
    tell(lambda: context.rename(path("x/two"), path("x/one"), overwrite))
    tell(lambda: context.rename(path("x/none"), path("x/three"), no_overwrite))
    (folder / "link").symlink_to(folder / "x" / "one")
    (folder / "dangling").symlink_to(folder / "nothing")
    for name in ("x/one", "link", "dangling", "x", "nothing"):
        tell(lambda name=name: context.getFileLinkStatus(path(name)).isFile())  # type: ignore[misc]
        tell(lambda name=name: context.util().exists(path(name)))  # type: ignore[misc]
    tell(lambda: context.setPermission(path("nothing"), fields(0o600)))
    # What Java cannot spell as a path, as any letter beyond ASCII in the locale C.
    tell(lambda: context.getFileLinkStatus(path("no\0name")).isFile())
    tell(lambda: context.setPermission(path("no\0name"), fields(0o600)))
    (folder / "x" / "one").write_text("rotten")
    tell(lambda: context.open(path("x/one")).read())
    tell(lambda: context.delete(path("x"), True))
    return found


def test_a_class_that_somebody_chose_stays(spark: SparkSession) -> None:
    with files_of(spark, "org.apache.hadoop.fs.local.RawLocalFs"):
        register(spark)
        assert spark.conf.get(SETTING) == "org.apache.hadoop.fs.local.RawLocalFs"


def test_the_process_of_a_task_has_no_jar_on_its_path(spark: SparkSession) -> None:
    """Python would read the names of all files in it, in each process."""

    def jars(_: object) -> list[str]:
        import sys

        return [one for one in sys.path if one.endswith(".jar")]

    assert spark.sparkContext.parallelize([0], 1).flatMap(jars).collect() == []
