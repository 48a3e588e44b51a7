"""Every example of the pages does what the page says, and every example program runs."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import resources
from pathlib import Path

import django.conf
import django.utils.functional
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from headwater import Headwater, Stream
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
from headwater.store import embedded
from tests.support.entries import offsets
from tests.support.page_commands import PageCommands
from tests.support.pages import ROOT, blocks, forms, pages, run_page


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory to work in, whose embedded store ends with the test."""
    directory = Path(tempfile.mkdtemp(prefix="hw-docs-"))
    monkeypatch.chdir(directory)
    for name in ("HEADWATER_URL", "HEADWATER_DIR"):
        monkeypatch.delenv(name, raising=False)
    # A page sets Django up as a program of its own does; other tests may have done so before.
    object.__setattr__(django.conf.settings, "_wrapped", django.utils.functional.empty)
    # A program that ends closes what the pools of its engines hold; a page does not end.
    pooled: list[object] = []
    note = partial(_note, pooled)
    sa.event.listen(sa.Pool, "connect", note)
    yield directory
    sa.event.remove(sa.Pool, "connect", note)
    for connection in pooled:
        if isinstance(connection, sqlite3.Connection):
            connection.close()
    embedded.stop(directory / ".headwater", now=True)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def commands() -> Iterator[PageCommands]:
    with PageCommands() as commands:
        yield commands


def _note(pooled: list[object], connection: object, _: object) -> None:
    pooled.append(connection)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


FORMS = [(page, form) for page in pages() if list(blocks(page)) for form in forms(page)]


@pytest.mark.parametrize(("page", "form"), FORMS, ids=lambda one: str(one).removeprefix(f"{ROOT}/"))
@pytest.mark.usefixtures("place")
def test_every_example_of_a_page_does_what_it_says(
    page: Path, form: str, commands: PageCommands
) -> None:
    run_page(page, form, commands)


def test_the_site_begins_with_the_example_of_the_readme() -> None:
    first, home = (next(blocks(ROOT / page)).text for page in ("README.md", "docs/index.md"))
    assert first == home


def test_the_readme_and_the_page_of_measurements_state_the_same_figures() -> None:
    readme, page = (
        (ROOT / name).read_text("utf-8") for name in ("README.md", "docs/discussion/speed.md")
    )
    section = readme.partition("## How fast, how small")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert len(rows) > 5, "the table of the log is in the README"
    assert [row for row in rows if row not in page] == []


# Those for Spark run with the tests of Spark.
PROGRAMS = sorted(set((ROOT / "examples").glob("*.py")) - set((ROOT / "examples").glob("spark_*")))


@pytest.mark.parametrize("program", PROGRAMS, ids=name_of)
def test_every_example_program_runs_and_ends(program: Path, place: Path) -> None:
    done = subprocess.run(
        [sys.executable, program], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout, "an example shows something"


# ── Whoever works on a stream at the same time, acknowledged messages stay where they are ────────


def until_set(done: threading.Event, act: Callable[[], object]) -> int:
    """Repeat an act until told to stop; returns how often."""
    times = 0
    while not done.is_set():
        act()
        times += 1
    return times


def write_all(stream: Stream, writer: int, turns: int) -> dict[int, bytes]:
    """Write batches of many sizes, every tag and value once; returns what is where."""
    places: dict[int, bytes] = {}
    for turn in range(turns):
        size = (1, 5, 60, 520)[(turn + writer) % 4]
        values = [b"%d.%d.%d" % (writer, turn, i) for i in range(size)]
        rows = [(value.decode(), value) for value in values]
        written = stream.write_many(rows, producer=f"w{writer}", sequence=turn)
        assert stream.write_many(rows, producer=f"w{writer}", sequence=turn) == written
        places |= dict(zip(written, values, strict=True))
    return places


def test_writers_sealers_compactors_and_readers_do_not_disturb_each_other(
    client: Headwater, name: str
) -> None:
    done = threading.Event()
    client.stream(name).write("first", b"first")

    def follow() -> list[bytes]:
        stream, seen = client.stream(name), 1
        values: list[bytes] = []
        while not (done.is_set() and seen > stream.info().last):
            found = stream.read(seen, 300, block_ms=20)
            values += [m.value if m else b"gone" for m in found]
            seen += len(found)
        return values

    with ThreadPoolExecutor(8) as pool:
        rewriters = [
            pool.submit(until_set, done, client.stream(name).seal),
            pool.submit(until_set, done, client.stream(name).seal),
            pool.submit(until_set, done, client.stream(name).compact),
        ]
        follower = pool.submit(follow)
        writers = [pool.submit(write_all, client.stream(name), i, 12) for i in range(3)]
        places = {1: b"first"}
        for writer in writers:
            places |= writer.result(60)
        done.set()
        assert all(rewriter.result(60) for rewriter in rewriters)
        seen = follower.result(60)
    last = client.stream(name).info().last
    assert sorted(places) == list(range(1, last + 1))
    assert seen == [places[offset] for offset in sorted(places)]
    found = client.stream(name).read(1, last)
    assert [m.value for m in found if m] == seen
    assert client.stream(name).info().length == last


def test_compaction_beside_writers_keeps_the_last_of_every_tag(
    client: Headwater, name: str
) -> None:
    done = threading.Event()
    newest: dict[str, int] = {}
    client.stream(name).write("t", b"")

    def write() -> None:
        stream = client.stream(name)
        for turn in range(40):
            size = (3, 30, 510)[turn % 3]
            rows = [(f"t{i * 7 % 90}", b"%d" % turn) for i in range(size)]
            for offset, (tag, _) in zip(stream.write_many(rows), rows, strict=True):
                newest[tag] = offset

    with ThreadPoolExecutor(4) as pool:
        rewriters = [
            pool.submit(until_set, done, client.stream(name).compact),
            pool.submit(until_set, done, client.stream(name).compact),
            pool.submit(until_set, done, client.stream(name).seal),
        ]
        pool.submit(write).result(60)
        done.set()
        assert all(rewriter.result(60) for rewriter in rewriters)
    stream = client.stream(name)
    stream.compact()
    assert offsets(stream.read(1, 10**5)) == [1, *sorted(newest.values())]
    assert stream.info().length == 91


def test_eviction_beside_readers_never_gives_a_wrong_message(client: Headwater, name: str) -> None:
    """Each value names its offset, so that a message at a wrong place would show."""
    stream = client.stream(name)
    total = 20_000
    for first in range(1, total + 1, 800):
        stream.write_many([(f"t{i % 40}", b"%d" % i) for i in range(first, first + 800)])
    done = threading.Event()

    def read(start: int) -> None:
        reader, at = client.stream(name), start
        while not done.is_set():
            for place, message in enumerate(reader.read(at, 70)):
                assert message is None or (message.offset, message.value) == (
                    at + place,
                    b"%d" % (at + place),
                )
            at = at % total + 37

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read, start) for start in (1, 9000)]
        for limit in range(350, total, 350):
            stream.evict(limit)
            if limit % 1400 == 0:
                stream.compact()
        done.set()
        for reader in readers:
            reader.result(60)
    assert stream.info().first == (total - 1) // 350 * 350 + 1


# Tables of our own are what their SQL files say, and any number of processes may create them.


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
