"""Checkpoints on a local disk: written as Hadoop writes them, without a process for each step."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from headwater import Stream
from headwater.spark import register
from tests.support.entries import entries
from tests.support.spark.harvest import Harvest

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
    harvest = Harvest(spark, tmp_path, embedded_url, stream=name, maxOffsetsPerTrigger=10)
    used = {}
    # The first query of a session starts what all of them need.
    for place, which in (("first", OURS), (OURS, OURS), (HADOOPS, HADOOPS)):
        with files_of(spark, which):
            before = ended_children(spark)
            copy = harvest.frame().writeStream.format("noop")
            copy = copy.option("checkpointLocation", str(tmp_path / place))
            copy.trigger(availableNow=True).start().awaitTermination()
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
        harvest = Harvest(spark, tmp_path, embedded_url, stream=name)
        with files_of(spark, which):
            totals = harvest.frame().groupBy("tag").count().writeStream.format("memory")
            totals = totals.queryName("totals").outputMode("complete").trigger(availableNow=True)
            query = totals.option("checkpointLocation", str(tmp_path / "state")).start()
            query.awaitTermination()
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
