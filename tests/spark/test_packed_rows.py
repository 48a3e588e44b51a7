"""Rows that the JVM packs as nodes give the messages, and the errors, of rows that Python packs.

Each write runs twice: in a session with our rules, and in the same one without them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import headwater
from headwater import Headwater, Stream
from headwater.spark import register
from headwater.spark.engine.failures import translated
from tests.support.spark.dying_sinks import Death, log_sink_that_dies
from tests.support.spark.plans import last_plan, without_our_rule

PACKED = "headwater (nodes)"
TEXTS = "elt(1 + id % 5, '', 'plain', 'größer', '日本語', concat('🚀', id))"
# Behind 1970 by less than a millisecond; now; in the year 2200.
TIMES = "timestamp_micros(elt(1 + id % 3, -999, 1790000000123456, 7258118400000999) + 0)"
KINDS = {
    "texts": (4321, [f"concat({TEXTS}, id) AS tag", f"concat({TEXTS}, id) AS value"]),
    "bytes": (1400, ["unhex(substr('00FF80', 1, 2 * (id % 4))) AS value"]),
    "times": (
        2600,
        [f"{TEXTS} AS tag", f"{TIMES} AS time", "CAST(CAST(id AS string) AS binary) AS value"],
    ),
    "large": (60, ["'t' AS tag", "repeat('0123456789abcdef', 1 << (id % 18)) AS value"]),
    "greatest": (2, ["repeat('t', 4096) AS tag", "repeat('x', 16 << 20) AS value"]),
    "few": (3, ["'t' AS tag", "CAST(id AS string) AS value"]),
    "none": (0, ["'t' AS tag", "CAST(id AS string) AS value"]),
}
# All steps in ``make test-long``; each takes a query that dies and another that goes on.
LONG = "HEADWATER_LONG" in os.environ
STEPS = ("writing", "staged", "begun", "published") if LONG else ("writing", "begun")
# Settings of a session that change how rows get to Python, or are read before that.
SETTINGS = {
    "many": {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.execution.arrow.compression.codec": "zstd",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.caseSensitive": "true",
        "spark.sql.session.timeZone": "America/New_York",
    },
    # Rows are sent as they are: Arrow does not read back what is empty.
    "lz4": {"spark.sql.execution.arrow.compression.codec": "lz4"},
}
REFUSED = [
    "SELECT IF(id = 2500, NULL, 'x') AS value",
    "SELECT 'x' AS value, IF(id = 0, NULL, 't') AS tag",
    "SELECT 'x' AS value, IF(id = 1200, repeat('t', 4097), 't') AS tag",
    "SELECT 'x' AS value, IF(id = 1700, CAST(X'41FF' AS string), 't') AS tag",
    "SELECT IF(id = 7, repeat('x', 1 + (16 << 20)), 'x') AS value",
    "SELECT 'x' AS value, IF(id = 1999, NULL, now()) AS time",
    "SELECT 'x' AS value, timestamp_micros(1500 - id) AS time",
]


@pytest.fixture
def store(embedded_url: str) -> Iterator[Headwater]:
    with headwater.connect(embedded_url) as hw:
        yield hw


def write(rows: DataFrame, url: str, stream: str, **options: str) -> str:
    """Write rows to a stream; returns the plan of that."""
    writer = rows.write.format("headwater").mode("append")
    writer.options(url=url, stream=stream, **options).save()
    return last_plan(rows.sparkSession)


def messages(stream: Stream, times: bool) -> list[tuple[object, ...]]:
    found = [m for m in stream.read(1, 1_000_000) if m]
    stream.delete()
    return [(m.tag, m.value, m.time_ms if times else None) for m in found]


@pytest.mark.parametrize("kind", KINDS)
def test_packed_rows_are_the_same_messages(
    spark: SparkSession, embedded_url: str, store: Headwater, name: str, kind: str
) -> None:
    count, columns = KINDS[kind]
    # Of five tasks some have few rows, or none.
    rows = spark.range(0, count, 1, 4).where("id % 2 = 0 OR id < 1500").selectExpr(*columns)
    rows = rows.union(rows.limit(0)) if count else rows
    stream = store.stream(name)
    assert PACKED in write(rows, embedded_url, name)
    info = stream.info()
    ours = messages(stream, "time" in rows.columns)
    with without_our_rule(spark):
        assert PACKED not in write(rows, embedded_url, name)
    assert (info.nodes, info.sealed) == (stream.info().nodes, stream.info().sealed)
    theirs = messages(stream, "time" in rows.columns)
    assert ours == theirs
    assert len(ours) == rows.count()


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_settings_of_a_session_change_no_message(
    spark: SparkSession, embedded_url: str, store: Headwater, name: str, settings: str
) -> None:
    rows = spark.range(0, 2600, 1, 2).selectExpr(
        "timestamp_micros(1790000000123456 + id) AS time", "concat('v', id) AS value", "'t' AS tag"
    )
    stream = store.stream(name)
    write(rows, embedded_url, name)
    usual = messages(stream, times=True)
    nulls = rows.selectExpr("value", "IF(value = 'v7', NULL, tag) AS tag")
    kept = rows.coalesce(1).cache()
    before = {key: spark.conf.get(key) or "" for key in SETTINGS[settings]}
    for key, value in SETTINGS[settings].items():
        spark.conf.set(key, value)
    try:
        assert "tag that is null" in refusal(nulls, embedded_url, name)
        assert (PACKED in write(kept, embedded_url, name)) == (settings != "lz4")
    finally:
        kept.unpersist()
        for key, value in before.items():
            spark.conf.set(key, value)
    assert messages(stream, times=True) == usual


def test_rows_of_our_own_source_are_packed_as_they_are(
    spark: SparkSession,
    embedded_url: str,
    make_embedded_stream: Callable[[int], Stream],
    store: Headwater,
) -> None:
    source = make_embedded_stream(2300)
    rows = spark.read.format("headwater").options(url=embedded_url, stream=source.name).load()
    copied = store.stream(f"{source.name}-copied")
    assert PACKED in write(rows, embedded_url, copied.name)
    assert messages(copied, times=True) == messages(source, times=True)


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        (["'x' AS value", "map('k', X'00') AS headers"], {}),
        (["id"], {"schema": "id long"}),
    ],
)
def test_what_python_has_to_look_at_goes_to_python_as_rows(
    spark: SparkSession,
    embedded_url: str,
    store: Headwater,
    name: str,
    columns: list[str],
    options: dict[str, str],
) -> None:
    rows = spark.range(3).selectExpr(*columns)
    assert PACKED not in write(rows, embedded_url, name, **options)
    assert len(messages(store.stream(name), times=False)) == 3


def refusal(rows: DataFrame, url: str, stream: str) -> str:
    with pytest.raises(PySparkException) as caught:
        write(rows, url, stream)
    return str(translated(caught.value))


@pytest.mark.parametrize("query", REFUSED)
def test_a_row_that_the_log_does_not_take_has_the_same_error(
    spark: SparkSession, embedded_url: str, store: Headwater, name: str, query: str
) -> None:
    rows = spark.sql(f"{query} FROM range(0, 4000, 1, 2)")
    told = refusal(rows, embedded_url, name)
    with without_our_rule(spark):
        assert told == refusal(rows, embedded_url, name)
    assert not store.stream(name).info().exists
    left = store.store.command("KEYS", f"hw:s:{{{name}*:staged:*")
    assert not any(left), "what the tasks staged is dropped"


@pytest.mark.fault
def test_a_query_that_sends_nodes_may_die_at_any_step(
    spark: SparkSession,
    embedded_url: str,
    make_embedded_stream: Callable[[int], Stream],
    store: Headwater,
    tmp_path: Path,
) -> None:
    source = make_embedded_stream(1)
    copied = store.stream(f"{source.name}-copied")
    # A session of its own, in which the format itself is the one that dies.
    fresh = spark.newSession()
    register(fresh)

    def run(step: str) -> None:
        fresh.dataSource.register(
            log_sink_that_dies(Death(step, str(tmp_path / step)), "headwater")
        )
        rows = fresh.readStream.format("headwater").options(url=embedded_url, stream=source.name)
        query = (
            rows.load()
            .select("tag", "value")
            .writeStream.format("headwater")
            .options(url=embedded_url, stream=copied.name, checkpointLocation=str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(240)

    for step in STEPS:
        source.write_many([(f"t{n % 7}", f"{step} {n}".encode()) for n in range(1500)])
        if step == "writing":
            run(step)
        else:
            with pytest.raises(PySparkException):
                run(step)
            run("never")
        assert (tmp_path / step).exists(), f"{step} was not reached"
        assert PACKED in last_plan(fresh)
    assert messages(copied, times=False) == messages(source, times=False)
