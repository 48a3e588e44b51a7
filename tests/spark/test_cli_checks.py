"""``headwater spark`` refuses what it cannot use before it starts Spark, which takes long."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import headwater
from headwater.store import embedded
from tests.support.commands import PROGRAM
from tests.support.postgres import Postgres
from tests.support.servers import free_ports
from tests.support.waking import check_quick

# Each starts a process: one of a kind in a short run.
AT_LENGTH = pytest.mark.long
# A busy machine takes some seconds to import what a job needs; to start Spark it takes many more.
AT_ONCE_S = 20.0
TOTALS = ("--value", "v", "--available-now")
TABLES = ("--table", "rides", "--per", "pilot", "--value", "mm", "--state", "sums")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Java that only notes that it was started."""
    home = tmp_path_factory.mktemp("home")
    java = home / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    facts = f"java.home = {home}/java\njava.specification.version = 21\n"
    java.write_text(f"#!/bin/sh\ntouch {home}/started\nprintf '{facts}' >&2\nexit 1\n")
    java.chmod(0o755)
    return home


@pytest.fixture(scope="module")
def url(home: Path) -> Iterator[str]:
    """A store with a stream."""
    url = f"embedded://{home}/store"
    embedded.start(home / "store")
    with headwater.connect(url) as hw:
        hw.stream("here").write("t", b"{}")
    yield url
    embedded.stop(home / "store", now=True)


@pytest.fixture(scope="module")
def db(home: Path) -> str:
    """A database with a table."""
    db = f"sqlite:///{home}/app.db"
    engine = sa.create_engine(db)
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE rides (id INTEGER PRIMARY KEY, pilot TEXT, mm INTEGER)")
    engine.dispose()
    return db


def spark(home: Path, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a job by that Java."""
    return subprocess.run(
        [PROGRAM, "spark", *words],
        env=os.environ | {"HEADWATER_URL": url, "JAVA_HOME": str(home / "java")},
        capture_output=True,
        text=True,
        check=False,
    )


def refusal(home: Path, url: str, *words: str) -> str:
    """Run a command that must refuse at once; returns its error."""
    (home / "started").unlink(missing_ok=True)
    said: list[str] = []

    def took_ms() -> float:
        begun = time.monotonic()
        done = spark(home, url, *words)
        took = (time.monotonic() - begun) * 1000
        assert not (home / "started").exists(), "no JVM was started"
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("error: "), done.stderr
        assert done.stderr.count("\n") == 1
        said.append(done.stderr)
        return took

    check_quick(took_ms, AT_ONCE_S * 1000)
    return said[-1]


def test_what_can_be_used_starts_spark(home: Path, url: str) -> None:
    assert spark(home, url, "compact", "here").returncode != 0, "that Java runs nothing"
    assert (home / "started").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("totals", "nowhere", "--db", "{db}", "--value", "v"),
        ("compact", "nowhere"),
        ("restore", "nowhere", "--from", "{home}/archive", "--into", "s"),
        pytest.param(("totals", "nowhere", "--topic", "--db", "{db}", *TOTALS), marks=AT_LENGTH),
        pytest.param(("archive", "nowhere", "--to", "{home}/archive"), marks=AT_LENGTH),
        pytest.param(("reconcile", "nowhere", "--db", "{db}", *TABLES), marks=AT_LENGTH),
    ],
)
def test_a_name_that_is_unknown(words: tuple[str, ...], home: Path, url: str, db: str) -> None:
    filled = [word.format(db=db, home=home) for word in words]
    assert "nowhere" in refusal(home, url, *filled)


@pytest.mark.parametrize(
    "words",
    [
        ("totals", "here", "--db", "{db}", *TOTALS),
        pytest.param(("compact", "here"), marks=AT_LENGTH),
        pytest.param(
            ("backfill", "b", "--db", "{db}", "--table", "rides", "--stream", "s"), marks=AT_LENGTH
        ),
    ],
)
def test_a_store_that_is_not_there(words: tuple[str, ...], home: Path, db: str) -> None:
    dead = f"redis://127.0.0.1:{free_ports(1)[0]}"
    filled = [word.format(db=db) for word in words]
    assert "cannot reach the store" in refusal(home, dead, *filled)


REFUSED = [
    (("totals", "here", "--db", "sqlite:////nowhere/app.db", *TOTALS), "no folder /nowhere"),
    (("reconcile", "here", "--db", "sqlite:////nowhere/app.db", *TABLES), "no such file"),
    (("reconcile", "here", "--db", "{db}", *TABLES, "--archive", "{home}/none"), "no archive"),
    (("reconcile", "here", "--db", "{db}", *TABLES, "--key", "nr"), "no column 'nr'"),
    (("backfill", "b", "--db", "{db}", "--table", "none", "--stream", "s"), "none"),
    (
        ("backfill", "b", "--db", "{db}", "--table", "rides", "--stream", "s", "--tag", "nr"),
        "no column 'nr'",
    ),
    (("backfill", "b", "--files", "{home}/none", "--stream", "s"), "no files at"),
    (("archive", "here", "--to", "{home}/app.db"), "an archive cannot lie at"),
    (("walk", "--instances", "127.0.0.1:1"), "127.0.0.1:1"),
    (
        (
            *("backfill", "b", "--db", "{db}", "--table", "rides", "--timelines"),
            *("127.0.0.1:1", "--tag", "pilot", "--value", "pilot", "--score", "mm"),
        ),
        "127.0.0.1:1",
    ),
]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        *(case for place, case in enumerate(REFUSED) if place % 4 == 0),
        *(pytest.param(*case, marks=AT_LENGTH) for n, case in enumerate(REFUSED) if n % 4),
    ],
)
def test_a_database_a_farm_or_a_path_that_cannot_be_used(
    words: tuple[str, ...], says: str, home: Path, url: str, db: str
) -> None:
    filled = [word.format(db=db, home=home) for word in words]
    assert says in refusal(home, url, *filled)


@pytest.mark.parametrize("job", ["totals", pytest.param("reconcile", marks=AT_LENGTH)])
def test_a_database_of_postgres_that_does_not_exist(
    job: str, home: Path, url: str, postgres: Postgres
) -> None:
    db = f"postgresql://postgres@/nope?host={postgres.directory}"
    more = TOTALS if job == "totals" else TABLES
    assert 'database "nope" does not exist' in refusal(home, url, job, "here", "--db", db, *more)
