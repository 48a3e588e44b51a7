"""``headwater spark`` runs the jobs, prints what they did, and refuses in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

import headwater
from tests.support.commands import run, start
from tests.support.spark.rides import Rides, sums

pytestmark = pytest.mark.usefixtures("spark")


# What the jobs must be told of Rocket Rides.
TOTALS = ("--value", "distance_mm", "--per", "pilot")
TABLES = (
    *("--table", "rocket_rides", "--per", "pilot", "--value", "distance_mm"),
    *("--state", "rocket_pilot_totals", "--whole", "rocket_totals", "--records", "rides"),
)


@pytest.fixture
def database_url(tmp_path: object) -> str:
    return f"sqlite:///{tmp_path}/app.db"


@pytest.fixture
def rides(embedded_url: str, engine: sa.Engine, name: str) -> Iterator[Rides]:
    with headwater.connect(embedded_url) as hw:
        yield Rides(hw, engine, name)


def test_totals_and_reconcile_agree_and_drift_is_found_fixed_and_gone(
    rides: Rides, embedded_url: str, database_url: str
) -> None:
    rides.make(range(1, 51))
    rides.send()
    for consumer in ("one", "other"):
        rides.consume(consumer)
    here = (rides.stream.name, "--db", database_url)
    added = run(embedded_url, "spark", "totals", *here, *TOTALS, "--available-now", "--json")
    assert (added.code, added.row["records"]) == (0, 50)
    agreed = run(embedded_url, "spark", "reconcile", *here, *TABLES)
    assert agreed.code == 0, agreed.err
    assert agreed.out.count("right") == 3
    assert "compared 3 accounts with 50 rows: no drift" in agreed.out

    rides.spoil("other", "Ada", 1)
    drifted = run(embedded_url, "spark", "reconcile", *here, *TABLES)
    assert drifted.code == 1
    has = sums(range(1, 51))["Ada"]
    lines = [line.split() for line in drifted.out.splitlines()]
    assert ["other", "Ada", *map(str, (has[0], has[0], has[1] + 1, has[1], 1))] in lines
    shown = run(embedded_url, "spark", "reconcile", *here, *TABLES, "--dry-run")
    assert (shown.code, rides.stream.info().last) == (1, 50)
    assert "reset of other: {'all': {'rides': 50" in shown.out
    mended = run(embedded_url, "spark", "reconcile", *here, *TABLES, "--fix", "--json")
    resets = {each["name"]: each["reset"] for each in mended.row["verdicts"]}
    assert (mended.code, resets) == (0, {"one": None, "other": 51, "totals": None})
    rides.consume("other")
    assert run(embedded_url, "spark", "reconcile", *here, *TABLES, "--consumer", "other").code == 0


@pytest.mark.long
def test_a_totals_job_that_drifted_is_found_and_begun_anew(
    rides: Rides, embedded_url: str, database_url: str
) -> None:
    rides.make(range(1, 11))
    rides.send()
    here = (rides.stream.name, "--db", database_url)
    words = ("spark", "totals", *here, "--available-now", *TOTALS, "--window", "0")
    assert run(embedded_url, *words).code == 0
    with rides.engine.begin() as conn:
        conn.exec_driver_sql("UPDATE headwater_totals SET total = total + 1 WHERE per = 'pilot'")
    found = run(embedded_url, "spark", "reconcile", *here, *TABLES, "--fix")
    assert found.code == 1
    assert "run it with --anew" in found.out
    assert run(embedded_url, *words, "--anew").code == 0
    assert run(embedded_url, "spark", "reconcile", *here, *TABLES).code == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("totals", "s", "--value", "v", "--per", "all=id"), "'all'"),
        (("totals", "s", *TOTALS, "--window", "1500ms"), "whole seconds"),
        (("totals", "", *TOTALS, "--available-now"), "name"),
        (("reconcile", "nowhere", *TABLES), "no stream 'nowhere'"),
        (("reconcile", "nowhere", *TABLES, "--topic"), "nowhere"),
    ],
)
def test_a_refusal_is_one_line(
    words: tuple[str, ...], says: str, embedded_url: str, database_url: str, engine: sa.Engine
) -> None:
    engine.connect().close()
    answer = run(embedded_url, "spark", *words, "--db", database_url)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert says in answer.err


def test_a_setting_that_is_none_of_sparks_is_bad_usage(embedded_url: str) -> None:
    words = ("spark", "totals", "s", "--db", "sqlite://", *TOTALS, "--conf", "executor.memory=2g")
    answer = run(embedded_url, *words)
    assert answer.code == 2
    assert "spark.executor.memory=2g" in answer.err


def test_a_session_that_was_there_outlives_a_command(
    spark: SparkSession, embedded_url: str, database_url: str, name: str
) -> None:
    run(embedded_url, "spark", "totals", name, "--db", database_url, *TOTALS, "--available-now")
    assert spark.range(3).count() == 3


def test_a_master_is_refused_where_a_session_runs_elsewhere(
    spark: SparkSession, embedded_url: str, name: str
) -> None:
    with headwater.connect(embedded_url) as hw:
        hw.stream(name).write_many([("a", b"old"), ("a", b"new")])
    words = ("spark", "compact", name, "--master")
    answer = run(embedded_url, *words, "local[7]")
    here = spark.sparkContext.master
    assert here is not None
    assert (answer.code, answer.out, answer.err.count("\n")) == (1, "", 1)
    assert f"a session of Spark runs at {here} already, not at local[7]" in answer.err
    assert run(embedded_url, *words, here).code == 0


@pytest.mark.long
def test_a_job_runs_at_the_master_that_it_is_given(
    embedded_url: str, tmp_path: Path, name: str
) -> None:
    with headwater.connect(embedded_url) as hw:
        hw.stream(name).write_many([("a", b"old"), ("a", b"new")])
    words = ["spark", "compact", name, "--master", "local[1,2]", "--json"]
    # Spark notes its settings in such a file.
    for setting in ("enabled=true", f"dir={tmp_path.as_uri()}", "compress=false"):
        words += ["--conf", f"spark.eventLog.{setting}"]
    program = start(embedded_url, *words)
    out, err = program.communicate()
    assert program.returncode == 0, err
    assert json.loads(out)["removed"] == 1
    events = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert any('"spark.master":"local[1,2]"' in text for text in events)


def test_spark_submit_takes_the_same_commands(embedded_url: str) -> None:
    file = run(embedded_url, "spark", "entry").out.strip()
    named = {"PYSPARK_PYTHON": sys.executable}
    if " " in sys.executable:
        # Spark's script asks Python for its home, and does not quote the path of Python.
        named["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    done = subprocess.run(
        [Path(sys.executable).with_name("spark-submit"), file, "reconcile", "nowhere", "--fix"],
        env=os.environ | named,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    # What a program says on standard error, spark-submit says on standard output.
    assert "Missing option '--db'" in done.stdout


def test_without_spark_the_error_says_what_to_install(database_url: str) -> None:
    words = ["spark", "totals", "s", "--db", database_url, *TOTALS]
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        f"from headwater.cli.main import app; app({words!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "error: PySpark is not installed; run pip install 'headwater[spark]'\n"
