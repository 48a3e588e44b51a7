"""What a newer release left in databases, checkpoints and directories is refused, untouched."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

import headwater
from headwater import Headwater
from headwater.errors import FormatTooNew
from headwater.outbox import Outbox, Streamer
from headwater.spark.jobs.backfill import BackfillPlan, Journal
from headwater.sql.schemas import Schema
from headwater.store.directory import FORMAT_FILE
from tests.support.consumers import Desk
from tests.support.stores import Stores, works

KNOWN = max(
    int(file.name[:4]) for file in (resources.files("headwater.outbox") / "sql/sqlite").iterdir()
)
NEWER = rf"the schema 'outbox' in the database at .* has format {KNOWN + 1}.*up to {KNOWN}; upgrade"


@pytest.fixture
def store_url(stores: Stores) -> str:
    return stores.url("plain")


def note_version(engine: sa.Engine, package: str, version: int) -> None:
    """Leave what the files of a later release leave."""
    with engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE IF NOT EXISTS headwater_schemas "
            "(package TEXT NOT NULL PRIMARY KEY, version BIGINT NOT NULL)"
        )
        conn.exec_driver_sql("DELETE FROM headwater_schemas")
        words = {"package": package, "version": version}
        conn.execute(sa.text("INSERT INTO headwater_schemas VALUES (:package, :version)"), words)


# ── Tables ───────────────────────────────────────────────────────────────────────────────────


def test_tables_of_a_newer_release_are_not_created_over(engine: sa.Engine) -> None:
    note_version(engine, "outbox", KNOWN + 1)
    with pytest.raises(FormatTooNew, match=NEWER):
        Outbox(engine).create_all()
    assert sa.inspect(engine).get_table_names() == ["headwater_schemas"]


def test_a_streamer_leaves_tables_of_a_newer_release_alone(
    engine: sa.Engine, outbox: Outbox, streamer: Streamer, hw: Headwater, name: str
) -> None:
    with engine.begin() as conn:
        outbox.stage(conn, name, "t", b"1")
    note_version(engine, "outbox", KNOWN + 1)
    for run in (streamer.run_once, streamer.run):
        with pytest.raises(FormatTooNew, match=NEWER):
            run()
    assert not hw.stream(name).info().exists
    note_version(engine, "outbox", KNOWN)
    assert streamer.run_once() == 1


def test_a_consumer_leaves_tables_of_a_newer_release_alone(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write("t", b"1")
    note_version(desk.engine, "outbox", KNOWN + 1)
    with pytest.raises(FormatTooNew, match=NEWER):
        desk.consumer("c", name).run_once()
    assert desk.effects("c") == []
    note_version(desk.engine, "outbox", KNOWN)
    assert desk.consumer("c", name).run_once() == 1


@pytest.mark.parametrize("package", ["headwater.spark.jobs", "headwater.spark.sql_sink"])
def test_tables_of_spark_have_a_version_each(engine: sa.Engine, package: str) -> None:
    schema = Schema(package)
    schema.ensure(engine)
    note_version(engine, "outbox", KNOWN)
    schema.ensure(engine)
    note_version(engine, package.rpartition(".")[2], 9)
    with pytest.raises(FormatTooNew, match=f"the schema '{schema.name}' .* has format 9"):
        schema.ensure(engine)


# ── Checkpoints and plans of Spark ───────────────────────────────────────────────────────────


def test_a_checkpoint_of_a_newer_release_is_refused(hw: Headwater, name: str) -> None:
    # Spark 4.1 has no streaming reads from us.
    pytest.importorskip("pyspark.sql.streaming.datasource")
    from headwater.spark.log.stream_reader import StreamReader

    nothing: Any = None
    target = SimpleNamespace(hw=hw, name=name, streams=lambda: {0: name})
    reading: Any = SimpleNamespace(target=target)
    reader = StreamReader(reading, nothing, 1, nothing, None)
    reader.commit({"0": {"next": 5, "created": 1}})
    with pytest.raises(FormatTooNew, match=r"checkpoint of this query has format 2.*upgrade"):
        reader.commit({"format": 2, "positions": "in another way"})


def test_a_plan_of_a_newer_release_is_refused(hw: Headwater, name: str) -> None:
    journal = Journal(hw, name)
    older: dict[str, Any] = {"facts": {}, "chunks": []}
    journal.stream.write("plan", msgspec.json.encode(older))
    assert journal.read() == BackfillPlan({}, [])
    journal.stream.write("plan", msgspec.json.encode({"format": 2, "steps": []}))
    with pytest.raises(FormatTooNew, match=f"the plan of backfill '{name}' has format 2"):
        journal.read()


# ── Directories ──────────────────────────────────────────────────────────────────────────────


def test_a_data_directory_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    with headwater.connect(url) as hw:
        assert works(hw)
    file = tmp_path / "store" / FORMAT_FILE
    file.write_text("2\n")
    before = sorted(path.name for path in file.parent.iterdir())
    with pytest.raises(FormatTooNew, match=r"the data directory .*/store has format 2.*upgrade"):
        headwater.connect(url)
    assert sorted(path.name for path in file.parent.iterdir()) == before
    file.write_text("1\n")
    with headwater.connect(url) as hw:
        assert works(hw)
