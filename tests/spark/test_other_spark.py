"""A Spark that lacks what our Java needs turns all of it off, with one line; rows stay right.

Each part is made to be missing by its name: our Java asks for one that no Spark has.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from pyspark.sql import SparkSession

from headwater import Stream
from headwater.spark import register
from headwater.spark.engine import optimizer_rule
from headwater.spark.engine.optimizer_rule import PUSHDOWN, java_sources
from tests.support.entries import entries
from tests.support.spark.plans import plan_of

LINES = {
    line.split()[3]: line
    for line in java_sources()["Internals.java"].splitlines()
    if line.startswith("  static final")
}
# Every line, and what it would ask for.
LACKING = [
    (line, line.replace(f'"{name}"', f'"{name}Gone"'), f"{name}Gone")
    for line in LINES.values()
    for name in re.findall(r'"([$\w]+)"', line)
]
OF_ANOTHER_TYPE = [
    (line, line.replace("StructType", "String"), "outputSchema of type String")
    for line in (LINES["SCAN_SCHEMA"], LINES["TASK_SCHEMA"])
]
# What the compiler sees: a class that is gone, a method, a constructor with other arguments.
PLAIN = [
    ("ColumnScan.java", "python.PythonBatch;", "python.PythonBotch;"),
    ("OwnScans.java", "own.setShortName(name)", "own.setShortNome(name)"),
    ("OwnScans.java", "PythonScanBuilder(own, name, asked,", "PythonScanBuilder(name, own, asked,"),
    ("ColumnReaders.java", "source.createPythonTaskMetrics", "source.createTaskMetrics"),
    ("Nodes.java", "batch.buffers(buffer)", "batch.buffers()"),
    ("NodeWriter.java", "tasks.pickledWriteFunc()", "tasks.writeFunction()"),
]


def one_of_a_kind(*kinds: Sequence[tuple[str, str, str]]) -> list[Any]:
    """Return the first case of each kind, and the others for the long run."""
    return [
        pytest.param(*case, marks=[pytest.mark.long] if place else [], id=" ".join(case[1:]))
        for cases in kinds
        for place, case in enumerate(cases)
    ]


Session = Callable[..., SparkSession]


@pytest.fixture
def session_with(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Make a session of an application for which our Java was changed in one place."""

    def make(file: str, old: str, new: str) -> SparkSession:
        sources = java_sources()
        assert sources[file].count(old) == 1
        sources[file] = sources[file].replace(old, new)
        monkeypatch.setattr(optimizer_rule, "java_sources", lambda: sources)
        monkeypatch.setattr(optimizer_rule, "_rules", WeakKeyDictionary())
        fresh = spark.newSession()
        fresh.conf.set(PUSHDOWN, "true")
        register(fresh)
        return fresh

    return make


def check_is_off(spark: SparkSession, log: pytest.LogCaptureFixture, url: str, stream: str) -> str:
    """See that filters stay with Spark, rows are right, and one line says so; returns the line."""
    register(spark)
    assert spark.conf.get(PUSHDOWN) == "false"
    frame = spark.read.format("headwater").options(url=url, stream=stream).load()
    assert "ColumnarToRow" not in plan_of(frame)
    low, high = frame.where("offset <= 3"), frame.where("tag = 'tag-3'")
    low.explain()
    high.explain()
    assert sorted(row.offset for row in low.collect()) == [1, 2, 3]
    wanted = [(tag, value) for tag, value in entries(1200) if tag == "tag-3"]
    assert sorted((row.tag, bytes(row.value)) for row in high.collect()) == sorted(wanted)
    (line,) = [record.getMessage() for record in log.records if record.name == "headwater.spark"]
    assert "\n" not in line
    return line


def test_every_part_is_tried_here() -> None:
    used = {
        part
        for file, text in java_sources().items()
        if file != "Internals.java"
        for part in re.findall(r"\bInternals\.([A-Z]\w+)", text)
    }
    assert used == set(LINES)
    assert used == {line.split()[3] for line, _, _ in LACKING}


@pytest.mark.parametrize(("line", "asked", "words"), one_of_a_kind(LACKING, OF_ANOTHER_TYPE))
def test_a_part_that_is_missing_turns_all_of_it_off(
    session_with: Session,
    make_embedded_stream: Callable[[int], Stream],
    embedded_url: str,
    caplog: pytest.LogCaptureFixture,
    line: str,
    asked: str,
    words: str,
) -> None:
    fresh = session_with("Internals.java", line, asked)
    told = check_is_off(fresh, caplog, embedded_url, make_embedded_stream(1200).name)
    assert words in told


@pytest.mark.parametrize(("file", "old", "new"), one_of_a_kind(PLAIN))
def test_what_the_compiler_does_not_find_turns_all_of_it_off(
    session_with: Session,
    make_embedded_stream: Callable[[int], Stream],
    embedded_url: str,
    caplog: pytest.LogCaptureFixture,
    file: str,
    old: str,
    new: str,
) -> None:
    fresh = session_with(file, old, new)
    told = check_is_off(fresh, caplog, embedded_url, make_embedded_stream(1200).name)
    assert file in told
    assert "\tat " not in told


def test_an_application_after_another_one_gets_the_rule_too(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The JVM stays when a session is stopped, and with it what it knows of our classes."""
    monkeypatch.setattr(optimizer_rule, "_rules", WeakKeyDictionary())
    fresh = spark.newSession()
    with caplog.at_level(logging.WARNING, "headwater.spark"):
        register(fresh)
    rules = fresh._jsparkSession.experimental().extraOptimizations()
    assert rules.length() == 2
    assert not caplog.records
