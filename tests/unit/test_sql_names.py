"""A database is named without its secrets, however they are spelled and whoever names it."""

from __future__ import annotations

import asyncio
import sqlite3
import traceback
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import create_async_engine

from headwater.errors import HeadwaterError, InvalidInput
from headwater.outbox import Outbox, Streamer
from headwater.sql.driver_errors import safe_name, translated, without_secrets
from headwater.sql.engines import open_engine

SECRET = "hush-hush"
AWAY = "127.0.0.1:1"

# How a URL can carry a secret, and by which name it is shown.
SPELLINGS = {
    f"postgresql+psycopg://me:{SECRET}@{AWAY}/db": f"postgresql://me:***@{AWAY}/db",
    f"postgresql+psycopg://me@{AWAY}/db?password={SECRET}": f"postgresql://me@{AWAY}/db",
    f"postgresql+psycopg://me@{AWAY}/db?passfile=/home/{SECRET}": f"postgresql://me@{AWAY}/db",
    f"postgresql+psycopg://me@{AWAY}/db?sslpassword={SECRET}": f"postgresql://me@{AWAY}/db",
    f"postgresql+psycopg://me@{AWAY}/db?sslkey={SECRET}": f"postgresql://me@{AWAY}/db",
    f"postgresql+psycopg://me@{AWAY}/db?options=-c x.token={SECRET}": f"postgresql://me@{AWAY}/db",
    f"postgresql+psycopg://me@{AWAY}/db?%70assword={SECRET}": f"postgresql://me@{AWAY}/db",
    f"postgresql+psycopg://me@{AWAY}/db?PassWord={SECRET}": f"postgresql://me@{AWAY}/db",
    f"postgresql+psycopg://me@{AWAY}/db?sslmode=require&password={SECRET}": (
        f"postgresql://me@{AWAY}/db?sslmode=require"
    ),
    f"postgresql+psycopg://me@/db?host=/run/pg&password={SECRET}": (
        "postgresql://me@/db?host=%2Frun%2Fpg"
    ),
    f"postgresql+psycopg://me@{AWAY}/db?dbname=password%3D{SECRET}": f"postgresql://me@{AWAY}/db",
    f"postgresql+psycopg://me@{AWAY}/host=h password='{SECRET}'": (
        f"postgresql://me@{AWAY}/host=h password=***"
    ),
    f"postgresql+psycopg://me:a@{SECRET}@{AWAY}/db": f"postgresql://me:***@{AWAY}/db",
    f"postgresql+psycopg://me:{SECRET}/%3F%40@{AWAY}/db": f"postgresql://me:***@{AWAY}/db",
    f"postgresql+psycopg://me:a@{SECRET}/b@{AWAY}/db": f"postgresql://me:***@{AWAY}/db",
    f"postgresql+psycopg://me@{AWAY}/host=h options='-c my.pin={SECRET}'": (
        f"postgresql://me@{AWAY}/host=h options=***"
    ),
    f"sqlite:///file:app.db?mode=ro&uri=true&key={SECRET}": "sqlite:///file:app.db?mode=ro&uri=true",
    f"sqlite:///app.db?hexkey={SECRET}": "sqlite:///app.db",
    f"sqlite+pysqlite://:{SECRET}@/app.db?cipher=aes": "sqlite://:***@/app.db",
}


@pytest.mark.parametrize(("url", "name"), SPELLINGS.items())
def test_a_database_is_named_without_its_secrets(url: str, name: str) -> None:
    assert safe_name(sa.make_url(url)) == name


@pytest.mark.parametrize(
    "url",
    [
        URL.create("sqlite", database=f"file:app.db?mode=ro&key={SECRET}"),
        URL.create("postgresql", "me", SECRET, "h", 1, f"password = '{SECRET}"),
        URL.create("postgresql", "me", host="h", query={"dbname": f"passfile={SECRET}"}),
        URL.create("postgresql", "me", host="h", query={"password": ("a", SECRET)}),
    ],
    ids=str,
)
def test_a_url_that_was_put_together_is_named_without_its_secrets(url: URL) -> None:
    assert SECRET not in safe_name(url)


@pytest.mark.parametrize("url", [url for url in SPELLINGS if url.startswith("postgresql")])
def test_an_outbox_and_its_errors_show_no_secret(url: str) -> None:
    engine = sa.create_engine(url)
    outbox = Outbox(engine)
    assert repr(outbox) == f"Outbox({SPELLINGS[url]!r})"
    with pytest.raises(HeadwaterError) as caught:
        outbox.create_all()
    assert SPELLINGS[url] in str(caught.value)
    assert SECRET not in shown(caught.value)


def test_an_outbox_on_an_async_engine_shows_no_secret() -> None:
    url = f"postgresql+psycopg://me@{AWAY}/db?password={SECRET}"
    outbox = Outbox(create_async_engine(url))
    assert SECRET not in repr(outbox)

    async def create() -> None:
        await outbox.create_all()

    with pytest.raises(HeadwaterError) as caught:
        asyncio.run(create())
    assert SECRET not in shown(caught.value)


def test_what_is_no_outbox_is_named_by_its_type_alone() -> None:
    url: Any = f"postgresql://me:{SECRET}@{AWAY}/db"
    wrong: Any
    for wrong in (url, sa.create_engine(f"postgresql+psycopg://me@h/db?password={SECRET}")):
        with pytest.raises(InvalidInput) as caught:
            Streamer(wrong, wrong)
        assert SECRET not in str(caught.value)
    with pytest.raises(InvalidInput) as caught:
        Outbox(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"host=h password={SECRET}",
        f"host=h password='a://{SECRET}'",
        f"postgresql://me:x@h:{SECRET}/db",
        f"nosuch://me:{SECRET}@h/db",
        f"postgresql+nosuch://me:{SECRET}@h/db",
        SECRET,
    ],
)
def test_a_url_that_cannot_be_understood_is_not_shown(url: str) -> None:
    with pytest.raises(InvalidInput, match="use sqlite") as caught, open_engine(url):
        pass
    assert SECRET not in shown(caught.value)


def test_engines_that_get_their_secret_elsewhere_are_named_by_their_url() -> None:
    given = sa.create_engine(
        f"postgresql+psycopg://me@{AWAY}/db", connect_args={"password": SECRET}
    )
    made = sa.create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(f"host=127.0.0.1 port=1 password=my {SECRET}"),
    )
    for engine, name in ((given, f"postgresql://me@{AWAY}/db"), (made, "postgresql://")):
        with pytest.raises(HeadwaterError) as caught:
            Outbox(engine).create_all()
        assert name in str(caught.value)
        assert SECRET not in shown(caught.value)


ECHOED = [
    f'missing "=" after "{SECRET}" in connection info string\n',
    f'unexpected spaces found in "a {SECRET}", use percent-encoded spaces (%20) instead',
    f'invalid percent-encoded token: "{SECRET}%"',
    f'in IPv6 host address in URI: "postgresql://me:{SECRET}"x@[::1"',
    f"cannot read postgresql://me:{SECRET}@x@h/db",
    f"cannot read host=h password={SECRET} user=me",
    f"cannot read host=h PASSWORD = 'a \\' {SECRET}' user=me",
    f"cannot read host=h sslpassword='a '' {SECRET}",
    f"cannot read h/db?sslkey=a%20{SECRET}&user=me",
    f'invalid sslmode value: "{SECRET}"',
]


@pytest.mark.parametrize("text", ECHOED)
def test_what_a_driver_quotes_of_a_connection_string_is_not_shown(text: str) -> None:
    url = sa.make_url(f"postgresql://me@{AWAY}/db")
    assert SECRET not in without_secrets(text, url)
    assert SECRET not in shown(translated(psycopg.OperationalError(text), url))


def test_a_secret_that_is_known_is_not_shown_in_whatever_text() -> None:
    for url in (
        f"postgresql://me:{SECRET}@h/db",
        f"postgresql://me@h/db?password={SECRET}",
        f"postgresql://me@h/db?new_kind_of_secret={SECRET}",
        f"sqlite:///app.db?vfs={SECRET}",
    ):
        said = without_secrets(f"the server heard '{SECRET}' from me", sa.make_url(url))
        assert said == "the server heard '***' from me"
    spaced = URL.create("postgresql", "me", "a b/c", "h", 1, "db")
    assert without_secrets("a%20b%2Fc, a+b%2Fc and a b/c", spaced) == "***, *** and ***"


def test_what_helps_to_find_the_fault_stays() -> None:
    url = sa.make_url("postgresql://me:me@h:5432/db?sslrootcert=/ca.pem&bogus=1&connect_timeout=1")
    for text in (
        'connection to server at "10.0.0.1", port 5432 failed: FATAL: no role "me" for 1 user',
        'could not read root certificate file "/ca.pem"',
        'invalid connection option "bogus"',
        'relation "headwater_outbox" does not exist',
        "DETAIL:  Key (id)=(7) already exists.",
    ):
        assert without_secrets(text, url) == text


def test_an_error_that_is_shown_with_its_cause_shows_no_secret() -> None:
    url = sa.make_url(f"postgresql://me:{SECRET}@h/db")
    clean = sqlite3.OperationalError("disk I/O error")
    assert translated(clean, url).__cause__ is clean
    assert translated(psycopg.OperationalError(SECRET), url).__cause__ is None


def shown(error: BaseException) -> str:
    """Return what a traceback shows of an error, its causes included."""
    return "".join(traceback.format_exception_only(error)) + "".join(
        str(cause) for cause in _causes(error)
    )


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    at: BaseException | None = error
    while at is not None:
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
        if at is not None:
            found.append(at)
    return found
