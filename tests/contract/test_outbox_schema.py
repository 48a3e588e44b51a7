"""The tables of the outbox are what the SQL files say, however they were made."""

from __future__ import annotations

import sqlalchemy as sa

from headwater.outbox.schema import metadata, statements

INSERT = sa.text("INSERT INTO headwater_outbox (stream, tag, value) VALUES (:stream, :tag, :value)")
ROW = {"stream": "s", "tag": "t", "value": b"v"}


def run_files(engine: sa.Engine) -> None:
    with engine.begin() as conn:
        for statement in statements(engine.dialect.name):
            conn.exec_driver_sql(statement)


def columns(engine: sa.Engine, table: str) -> dict[str, tuple[str, bool]]:
    found = sa.inspect(engine).get_columns(table)
    return {
        column["name"]: (column["type"].compile(engine.dialect), column["nullable"])
        for column in found
    }


def test_the_files_create_the_tables_that_are_queried(engine: sa.Engine) -> None:
    run_files(engine)
    assert set(sa.inspect(engine).get_table_names()) == set(metadata.tables)
    for name, table in metadata.tables.items():
        assert columns(engine, name) == {
            column.name: (column.type.compile(engine.dialect), column.nullable)
            for column in table.columns
        }
        key = sa.inspect(engine).get_pk_constraint(name)["constrained_columns"]
        assert key == [column.name for column in table.primary_key.columns]


def test_the_files_may_be_run_again(engine: sa.Engine) -> None:
    run_files(engine)
    with engine.begin() as conn:
        conn.execute(INSERT, ROW)
    run_files(engine)
    with engine.begin() as conn:
        for table, rows in (("headwater_outbox", 1), ("headwater_streamer", 1)):
            assert conn.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() == rows


def test_a_row_knows_when_it_was_staged_by_the_clock_of_the_database(engine: sa.Engine) -> None:
    run_files(engine)
    with engine.begin() as conn:
        now = {
            "sqlite": "SELECT strftime('%s', 'now') * 1000",
            "postgresql": "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint",
        }[engine.dialect.name]
        before = conn.execute(sa.text(now)).scalar_one()
        conn.execute(INSERT, ROW)
        staged = conn.exec_driver_sql("SELECT staged_ms FROM headwater_outbox").scalar_one()
    assert before <= staged <= before + 10_000
