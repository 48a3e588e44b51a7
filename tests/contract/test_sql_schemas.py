"""Tables of our own are what their SQL files say, and any number of processes may create them."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from headwater.errors import DatabaseRefused, FormatTooNew
from headwater.outbox import Outbox
from headwater.outbox.schema import SCHEMA as OUTBOX
from headwater.outbox.schema import metadata as outbox_tables
from headwater.spark.jobs.ledger import SCHEMA as TOTALS
from headwater.spark.jobs.ledger import metadata as totals_tables
from headwater.spark.sql_sink.database import EPOCHS
from headwater.spark.sql_sink.database import SCHEMA as SINK
from headwater.sql.engines import DIALECTS
from headwater.sql.schemas import Schema

INSERT = sa.text("INSERT INTO headwater_outbox (stream, tag, value) VALUES (:stream, :tag, :value)")
ROW = {"stream": "s", "tag": "t", "value": b"v"}
SCHEMAS = {
    "outbox": (OUTBOX, set(outbox_tables.tables)),
    "totals": (TOTALS, set(totals_tables.tables)),
    "sink": (SINK, {EPOCHS}),
}
# What a release adds whose tables older programs cannot work with.
NEXT_FILE = """-- Notes, version 2.

CREATE TABLE IF NOT EXISTS headwater_notes (id BIGINT NOT NULL PRIMARY KEY);

CREATE TABLE IF NOT EXISTS headwater_schemas (
    package TEXT NOT NULL PRIMARY KEY, version BIGINT NOT NULL
);

INSERT INTO headwater_schemas (package, version) VALUES ('outbox', 2)
ON CONFLICT (package) DO UPDATE SET version = excluded.version;
"""
DENIED = (sa.exc.DBAPIError, sqlite3.OperationalError)
each_schema = pytest.mark.parametrize(("schema", "tables"), SCHEMAS.values(), ids=SCHEMAS)


def columns(engine: sa.Engine, table: str) -> dict[str, tuple[str, bool]]:
    found = sa.inspect(engine).get_columns(table)
    return {
        column["name"]: (column["type"].compile(engine.dialect), column["nullable"])
        for column in found
    }


@pytest.mark.parametrize(("schema", "metadata"), [(OUTBOX, outbox_tables), (TOTALS, totals_tables)])
def test_the_files_create_the_tables_that_are_queried(
    engine: sa.Engine, schema: Schema, metadata: sa.MetaData
) -> None:
    schema.create(engine)
    assert set(sa.inspect(engine).get_table_names()) == set(metadata.tables)
    for name, table in metadata.tables.items():
        assert columns(engine, name) == {
            column.name: (column.type.compile(engine.dialect), column.nullable)
            for column in table.columns
        }
        key = sa.inspect(engine).get_pk_constraint(name)["constrained_columns"]
        assert key == [column.name for column in table.primary_key.columns]


@each_schema
def test_the_files_may_be_run_again_by_hand(
    engine: sa.Engine, schema: Schema, tables: set[str]
) -> None:
    for _ in range(2):
        with engine.begin() as conn:
            for statement in schema.statements(engine.dialect.name):
                conn.exec_driver_sql(statement)
    assert set(sa.inspect(engine).get_table_names()) == tables


def test_what_is_there_stays_when_the_files_are_run_again(engine: sa.Engine) -> None:
    OUTBOX.create(engine)
    with engine.begin() as conn:
        conn.execute(INSERT, ROW)
    OUTBOX.create(engine)
    with engine.begin() as conn:
        for table, rows in (("headwater_outbox", 1), ("headwater_streamer", 1)):
            assert conn.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() == rows


def test_a_next_version_adds_its_file_and_stops_older_programs(
    engine: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "next_release" / "outbox"
    shutil.copytree(str(resources.files("headwater.outbox") / "sql"), package / "sql")
    for file in (package.parent / "__init__.py", package / "__init__.py"):
        file.touch()
    for dialect in DIALECTS.values():
        (package / "sql" / dialect / "0002_notes.sql").write_text(NEXT_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    newer = Schema("next_release.outbox")
    OUTBOX.create(engine)
    with engine.begin() as conn:
        conn.execute(INSERT, ROW)
    for _ in range(2):
        newer.create(engine)
        newer.ensure(engine)
    with engine.connect() as conn:
        assert conn.exec_driver_sql("SELECT count(*) FROM headwater_outbox").scalar() == 1
        assert conn.exec_driver_sql("SELECT count(*) FROM headwater_notes").scalar() == 0
    for stopped in (OUTBOX.create, OUTBOX.ensure, lambda engine: Outbox(engine).status()):
        with pytest.raises(FormatTooNew, match=r"has format 2, .*up to 1;"):
            stopped(engine)


@each_schema
def test_several_may_create_the_tables_at_once(
    engine: sa.Engine, schema: Schema, tables: set[str]
) -> None:
    together = threading.Barrier(8)

    def create() -> None:
        own = sa.create_engine(engine.url)
        together.wait()
        schema.ensure(own)
        own.dispose()

    for _ in range(5):
        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(create) for _ in range(8)]:
                done.result()
        assert set(sa.inspect(engine).get_table_names()) == tables
        with engine.begin() as conn:
            for table in tables:
                conn.exec_driver_sql(f"DROP TABLE {table}")


@each_schema
def test_tables_that_exist_need_no_right_to_create_them(
    engine: sa.Engine, schema: Schema, tables: set[str], name: str
) -> None:
    other = without_rights(engine, name)
    with pytest.raises(DENIED, match=r"permission denied|readonly"):
        schema.ensure(other)
    assert sa.inspect(engine).get_table_names() == []
    schema.create(engine)
    schema.ensure(other)
    with engine.begin() as conn:
        conn.exec_driver_sql(f"DROP TABLE {min(tables)}")
    with pytest.raises(DENIED, match=r"permission denied|readonly"):
        schema.ensure(other)
    other.dispose()


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
@pytest.mark.parametrize("right", ["none", "to create, but the tables are of another"])
def test_who_may_not_create_need_not_where_the_tables_exist(
    engine: sa.Engine, name: str, right: str
) -> None:
    other = without_rights(engine, name)
    if right != "none":
        with engine.begin() as conn:
            conn.exec_driver_sql(f'GRANT CREATE ON SCHEMA public TO "{name}"')
    else:
        with pytest.raises(DatabaseRefused):
            Outbox(other).create_all()
    Outbox(engine).create_all()
    Outbox(other).create_all()

    async def create() -> None:
        theirs = create_async_engine(other.url)
        await Outbox(theirs).create_all()
        await theirs.dispose()

    asyncio.run(create())
    other.dispose()


def without_rights(engine: sa.Engine, name: str) -> sa.Engine:
    """Return an engine of a user who may not create tables."""
    if engine.dialect.name == "sqlite":
        with engine.begin() as conn:
            # The file must be there.
            conn.exec_driver_sql("PRAGMA user_version = 1")
        return sa.create_engine(f"sqlite:///file:{engine.url.database}?mode=ro&uri=true")
    with engine.begin() as conn:
        conn.exec_driver_sql("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        conn.exec_driver_sql(f'CREATE ROLE "{name}" LOGIN')
    return sa.create_engine(engine.url.set(username=name))


def test_a_row_knows_when_it_was_staged_by_the_clock_of_the_database(engine: sa.Engine) -> None:
    OUTBOX.create(engine)
    with engine.begin() as conn:
        now = {
            "sqlite": "SELECT strftime('%s', 'now') * 1000",
            "postgresql": "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint",
        }[engine.dialect.name]
        before = conn.execute(sa.text(now)).scalar_one()
        conn.execute(INSERT, ROW)
        staged = conn.exec_driver_sql("SELECT staged_ms FROM headwater_outbox").scalar_one()
    assert before <= staged <= before + 10_000
