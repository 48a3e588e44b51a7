"""From the URL of a database to its engine and its file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import make_url

from headwater.errors import DatabaseUnreachable, InvalidInput
from headwater.sql.engines import (
    PostgresServer,
    SqliteFile,
    is_in_memory,
    open_engine,
    parse_url,
    sqlite_file,
)
from headwater.sql.relations import Relation, quoted


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        ("sqlite:///app.db", "sqlite"),
        ("postgres://me@h/db", "postgresql+psycopg"),
        ("postgresql://me@h/db", "postgresql+psycopg"),
        ("postgresql+asyncpg://me@h/db", "postgresql+asyncpg"),
    ],
)
def test_a_url_is_of_a_database_that_is_known(text: str, driver: str) -> None:
    assert parse_url(text).drivername == driver


@pytest.mark.parametrize("text", ["", "mysql://h/db", "postgresql://h:port/db"])
def test_a_url_of_another_database_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="use sqlite:///file or postgresql://"):
        parse_url(text)


def test_a_file_that_is_given_without_a_scheme_is_named_with_its_url() -> None:
    with pytest.raises(InvalidInput, match=r"'app.db' is not .* did you mean sqlite:///app\.db\?"):
        parse_url("app.db")


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("sqlite:///app.db", "app.db"),
        ("sqlite:////var/app.db", "/var/app.db"),
        ("sqlite:///file:app.db?uri=true", "app.db"),
        ("sqlite:///file:/var/app.db?mode=ro&uri=true", "/var/app.db"),
        ("sqlite:///file:///var/app.db?uri=true", "/var/app.db"),
        ("sqlite://", None),
        ("sqlite:///:memory:", None),
        ("sqlite:///file:x?mode=memory&cache=shared&uri=true", None),
        ("postgresql://me@h/db", None),
    ],
)
def test_the_file_of_a_database_is_known(text: str, file: str | None) -> None:
    url = make_url(text)
    assert sqlite_file(url) == (None if file is None else Path(file))
    assert is_in_memory(url) == (file is None and text.startswith("sqlite"))


def test_a_file_must_exist_unless_it_may_be_new(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    missing = "no such file; check that the URL names"
    with pytest.raises(DatabaseUnreachable, match=missing), open_engine(url):
        pass
    with open_engine(url, new=True) as engine:
        engine.connect().close()
    with open_engine(url):
        pass
    none = f"sqlite:///{tmp_path / 'none' / 'app.db'}"
    with pytest.raises(DatabaseUnreachable, match="no folder"), open_engine(none, new=True):
        pass


def test_an_engine_closes_its_connections_at_the_end(tmp_path: Path) -> None:
    with open_engine(f"sqlite:///{tmp_path / 'app.db'}", new=True) as engine:
        with engine.connect() as connection:
            kept = connection.connection.driver_connection
        assert isinstance(kept, sqlite3.Connection)
        kept.execute("SELECT 1")
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        kept.execute("SELECT 1")


def test_a_database_in_memory_is_not_shared_between_processes() -> None:
    with pytest.raises(InvalidInput, match="in memory"):
        SqliteFile(make_url("sqlite://"))


def test_a_parameter_that_libpq_does_not_know_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match='"bogus"') as caught:
        PostgresServer(make_url("postgresql://me:hush-hush@h/db?bogus=1"))
    assert "hush-hush" not in str(caught.value)


def test_names_are_quoted_whatever_they_hold() -> None:
    assert quoted('a"b') == '"a""b"'
    assert Relation.of('Main."a.b"').sql == '"Main"."a.b"'
    assert str(Relation.of("main.t")) == "table main.t"
    assert Relation.of(None, "SELECT 1;").sql == "(\nSELECT 1\n) AS q"
    for wrong in ("", "a..b", "a.b.c", 'a"b'):
        with pytest.raises(InvalidInput, match=r"schema\.name"):
            Relation.of(wrong)
