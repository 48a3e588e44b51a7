"""A backfill writes every row of its input once, in order, whatever happens in between."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

import headwater
from headwater.errors import InputChanged, InvalidInput, JobForgotten
from headwater.log.retention import PRODUCER_MS
from headwater.spark.jobs import backfill as jobs_backfill
from headwater.spark.jobs.backfill import Backfilled, backfill
from tests.support.spark.killing import kill_at_work
from tests.support.spark.tables import small_table

Fill: TypeAlias = Callable[..., Backfilled]


class Died(Exception):
    """A process that ended in the middle."""


@pytest.fixture
def fill(spark: SparkSession, embedded_url: str, name: str) -> Fill:
    def fill(**options: Any) -> Backfilled:
        settings = {"stream": name, "url": embedded_url, "tag": "pilot"} | options
        return backfill(spark, name, **settings)

    return fill


@pytest.fixture
def hw(embedded: headwater.Headwater) -> headwater.Headwater:
    return embedded


@pytest.fixture
def rides(engine: sa.Engine) -> None:
    """A table ``rides`` of 250 rows, written in no order."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE rides (id BIGINT PRIMARY KEY, pilot TEXT, fare DECIMAL(8, 2))"
        )
        rows = ", ".join(f"({i * 37 % 251 * 10}, 'p{i % 7}', {i}.25)" for i in range(1, 251))
        connection.exec_driver_sql(f"INSERT INTO rides VALUES {rows}")


def written(stream: headwater.Stream) -> list[tuple[str, Any]]:
    rows = [row for batch in stream.scan() for row in batch.to_pylist()]
    return [(row["tag"], json.loads(row["value"])) for row in rows]


@pytest.mark.usefixtures("rides")
def test_a_table_arrives_once_in_the_order_of_its_key(
    fill: Fill, hw: headwater.Headwater, database_url: str, name: str
) -> None:
    dry = fill(db=database_url, table="rides", chunk_rows=130, dry_run=True)
    assert (dry.rows, dry.chunks, hw.stream(name).info().exists) == (250, 2, False)
    assert dry.headline().startswith("dry run: would write 250 rows of table rides")
    done = fill(db=database_url, table="rides", chunk_rows=130)
    assert (done.rows, done.before) == (250, 0)
    rows = written(hw.stream(name))
    assert [value["id"] for _, value in rows] == list(range(10, 2510, 10))
    assert {tag for tag, _ in rows} == {f"p{i}" for i in range(7)}
    assert {tag: value["pilot"] for tag, value in rows} == {tag: tag for tag, _ in rows}
    again = fill(db=database_url, table="rides", chunk_rows=130)
    assert (again.rows, again.before) == (0, 250)
    assert len(written(hw.stream(name))) == 250


@pytest.mark.parametrize("kind", ["ick", "timelines"])
def test_a_score_that_would_be_rounded_is_refused(
    spark: SparkSession, embedded_url: str, name: str, tmp_path: Path, kind: str
) -> None:
    url = small_table(tmp_path, 1)
    change(url, f"UPDATE t SET id = {2**53 + 1}")
    target: dict[str, Any] = (
        {"ick": name} if kind == "ick" else {"timelines": embedded_url, "value": "raw"}
    )
    with pytest.raises(InvalidInput, match=f"the score {2**53 + 1} would be rounded"):
        backfill(spark, name, db=url, table="t", url=embedded_url, tag="word", score="id", **target)


@pytest.mark.parametrize("moment", ["write", "end_chunk"])
def test_a_run_that_died_is_gone_on_with(
    fill: Fill,
    hw: headwater.Headwater,
    tmp_path: Path,
    name: str,
    moment: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = small_table(tmp_path, 20)
    holder = jobs_backfill.BackfillTarget if moment == "write" else jobs_backfill.Journal
    whole, calls = getattr(holder, moment), []

    def die(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 2:
            raise Died
        whole(*args)

    monkeypatch.setattr(holder, moment, die)
    with pytest.raises(Died):
        fill(db=url, table="t", tag="id", chunk_rows=10)
    monkeypatch.undo()
    if moment == "end_chunk":
        change(url, "UPDATE t SET word = 'new' WHERE id = 13")
        with pytest.raises(InputChanged, match="rows of chunk 2 arrived before, and are others"):
            fill(db=url, table="t", tag="id", chunk_rows=10)
        change(url, "UPDATE t SET word = 'w13' WHERE id = 13")
    done = fill(db=url, table="t", tag="id", chunk_rows=10)
    assert done.before == 10
    assert [value["id"] for _, value in written(hw.stream(name))] == list(range(20))


def change(url: str, statement: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def test_another_input_is_refused(
    fill: Fill, hw: headwater.Headwater, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = small_table(tmp_path)
    options = {"db": url, "table": "t", "tag": "id", "chunk_rows": 20}
    whole = jobs_backfill.Journal.begin_chunk

    def die(self: jobs_backfill.Journal, place: int) -> None:
        whole(self, place)
        raise Died

    monkeypatch.setattr(jobs_backfill.Journal, "begin_chunk", die)
    with pytest.raises(Died):
        fill(**options)
    monkeypatch.undo()
    with pytest.raises(InputChanged, match="value is 'word', and was None"):
        fill(**options | {"value": "word"})
    change(url, "DELETE FROM t WHERE id = 3")
    with pytest.raises(InputChanged, match=f"{name}.* has .* rows from its beginning on"):
        fill(**options)
    assert not hw.stream(name).info().exists
    change(url, "INSERT INTO t VALUES (3, 'w3', x'03'), (99, 'late', x'00')")
    journal = jobs_backfill.Journal(hw, name)
    plan = journal.read()
    assert plan is not None
    with pytest.raises(JobForgotten, match=f"backfill.{name}"):
        journal.check(plan, plan.facts, now_ms=time.time() * 1000 + PRODUCER_MS)
    assert fill(**options).rows == 30
    assert [value["id"] for _, value in written(hw.stream(name))] == list(range(30))


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_files_arrive_once(
    fill: Fill, hw: headwater.Headwater, tmp_path: Path, name: str, kind: str
) -> None:
    folder = tmp_path / "some files"
    folder.mkdir()
    for part in range(3):
        ids = list(range(part * 10, part * 10 + 10))
        table = pa.table({"id": ids, "pilot": [f"p{i % 4}" for i in ids]})
        file = folder / f"part {part}.{kind}"
        if kind == "csv":
            pyarrow.csv.write_csv(table, file)
        else:
            file.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    options = {"header": "true", "inferSchema": "true"} if kind == "csv" else {}
    settings = {"files": str(folder), "format": kind, "options": options, "chunk_rows": 15}
    done = fill(**settings)
    assert (done.rows, done.chunks) == (30, 3)
    rows = written(hw.stream(name))
    assert sorted(value["id"] for _, value in rows) == list(range(30))
    assert all(tag == value["pilot"] == f"p{value['id'] % 4}" for tag, value in rows)
    (folder / f"part 3.{kind}").write_bytes((folder / f"part 0.{kind}").read_bytes())
    with pytest.raises(InputChanged, match="files is 4, and was 3"):
        fill(**settings)


def test_files_can_be_ordered_and_columns_be_values(
    fill: Fill, hw: headwater.Headwater, tmp_path: Path, name: str
) -> None:
    ids = [i * 7 % 40 for i in range(40)]
    values = [None if i == 5 else f"v{i}".encode() for i in ids]
    pyarrow.parquet.write_table(pa.table({"id": ids, "v": values}), tmp_path / "all.parquet")
    files = str(tmp_path / "all.parquet")
    done = fill(files=files, tag="id", value="v", order_by="id", chunk_rows=20)
    assert done.chunks == 2
    found = [(m.tag, m.value) for m in hw.stream(name).read(1, 100) if m]
    assert found == [(str(i), b"" if i == 5 else f"v{i}".encode()) for i in range(40)]


def test_a_topic_takes_rows_by_their_tags(
    fill: Fill, hw: headwater.Headwater, tmp_path: Path, name: str
) -> None:
    url = small_table(tmp_path)
    topic = hw.topic(name, 3)
    fill(db=url, table="t", stream=None, topic=name, tag="word", chunk_rows=20)
    rows = [row for part in range(3) for row in written(hw.stream(f"{topic.name}/{part}"))]
    assert sorted(value["id"] for _, value in rows) == list(range(30))


def test_what_cannot_be_is_refused_before_anything_is_written(
    fill: Fill, hw: headwater.Headwater, tmp_path: Path, name: str
) -> None:
    url = small_table(tmp_path)
    change(url, "CREATE TABLE bare (n INTEGER, raw BLOB)")
    refused: list[tuple[dict[str, Any], str]] = [
        ({}, "a table or a query of a database, or files"),
        ({"table": "t"}, "by db"),
        ({"db": url, "table": "t", "stream": None}, "one place to write to"),
        ({"db": url, "table": "t", "tag": "nope"}, "there are id, word, raw"),
        ({"db": url, "table": "t", "order_by": "raw"}, "cannot be ordered by 'raw'"),
        ({"db": url, "table": "bare", "tag": "n"}, "no primary key of one column"),
        ({"files": str(tmp_path / "nope")}, "no files at"),
        ({"files": str(tmp_path), "format": "xml"}, "one of parquet, csv"),
    ]
    for options, words in refused:
        with pytest.raises(InvalidInput, match=words):
            fill(**options)
    assert name not in "".join(hw.streams())


@pytest.mark.long
@pytest.mark.fault
@pytest.mark.timeout(300)
def test_a_killed_command_is_gone_on_with(
    fill: Fill, hw: headwater.Headwater, embedded_url: str, tmp_path: Path, name: str
) -> None:
    """The driver and the JVM are killed while chunks are on their way."""
    url = small_table(tmp_path, 4000)
    words = ["spark", "backfill", name, "--db", url, "--table", "t", "--tag", "id"]
    words += ["--stream", name, "--chunk-rows", "1000", "--json"]
    stream = hw.stream(name)
    kill_at_work(embedded_url, *words, when=lambda: stream.info().length)
    done = fill(db=url, table="t", tag="id", chunk_rows=1000)
    assert 0 <= done.before < 4000
    assert [value["id"] for _, value in written(stream)] == list(range(4000))
