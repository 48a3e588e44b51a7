"""A database is named without its secrets, however they are spelled and whoever names it."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import traceback
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import URL, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from headwater.errors import DatabaseUnreachable, HeadwaterError, InvalidInput
from headwater.outbox import Outbox, Streamer
from headwater.sql.driver_errors import safe_name, translated, without_secrets
from headwater.sql.engines import (
    PostgresServer,
    SqliteFile,
    is_in_memory,
    open_engine,
    parse_url,
    sqlite_file,
)
from headwater.sql.schemas import Relation, quoted
from headwater.store.url import URL_VARIABLE, Address, resolve

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


# ── From the URL of a database to its engine and its file ────────────────────────────────────────


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


# ── From a URL to an address: what each form means, and that no error shows a password ───────────


HOME = Path("/home/of/the/embedded/store")


def single(safe: str, **options: Any) -> Address:
    nodes = ((options["host"], options["port"]),) if "host" in options else ()
    return Address("single", safe, options, nodes)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://", single("redis://localhost:6379", host="localhost", port=6379, db=0)),
        ("redis://h", single("redis://h:6379", host="h", port=6379, db=0)),
        ("redis://h:7000/3", single("redis://h:7000/3", host="h", port=7000, db=3)),
        ("redis://h/", single("redis://h:6379", host="h", port=6379, db=0)),
        ("redis://[::1]:7000", single("redis://[::1]:7000", host="::1", port=7000, db=0)),
        ("redis://[::1]", single("redis://[::1]:6379", host="::1", port=6379, db=0)),
        (
            "redis://:se%2Fcret@h",
            single("redis://h:6379", password="se/cret", host="h", port=6379, db=0),
        ),
        (
            "redis://me:p%40ss:word@h",
            single(
                "redis://h:6379", username="me", password="p@ss:word", host="h", port=6379, db=0
            ),
        ),
        (
            "redis://me:p@ss@h",
            single("redis://h:6379", username="me", password="p@ss", host="h", port=6379, db=0),
        ),
        ("unix:///run/r.sock", single("unix:///run/r.sock", unix_socket_path="/run/r.sock", db=0)),
        (
            "unix://me:pw@/run/my%20r.sock?db=2",
            single(
                "unix:///run/my r.sock?db=2",
                unix_socket_path="/run/my r.sock",
                db=2,
                username="me",
                password="pw",
            ),
        ),
        (
            "rediss://h:7000?ssl_ca_certs=/ca.pem&ssl_cert_reqs=optional",
            single(
                "rediss://h:7000",
                ssl=True,
                ssl_ca_certs="/ca.pem",
                ssl_cert_reqs="optional",
                host="h",
                port=7000,
                db=0,
            ),
        ),
        (
            "redis+cluster://me:pw@a:1,b,[::1]:3",
            Address(
                "cluster",
                "redis+cluster://a:1,b:6379,[::1]:3",
                {"username": "me", "password": "pw"},
                (("a", 1), ("b", 6379), ("::1", 3)),
            ),
        ),
        (
            "rediss+cluster://a:1",
            Address("cluster", "rediss+cluster://a:1", {"ssl": True}, (("a", 1),)),
        ),
        (
            "redis+sentinel://me:pw@a,b:1/log/2?sentinel_username=s&sentinel_password=s%26w",
            Address(
                "sentinel",
                "redis+sentinel://a:26379,b:1/log/2",
                {"username": "me", "password": "pw", "db": 2},
                (("a", 26379), ("b", 1)),
                service="log",
                sentinel_options={"username": "s", "password": "s&w"},
            ),
        ),
        (
            "rediss+sentinel://a/my%20log?ssl_ca_certs=/ca.pem",
            Address(
                "sentinel",
                "rediss+sentinel://a:26379/my log",
                {"ssl": True, "ssl_ca_certs": "/ca.pem", "db": 0},
                (("a", 26379),),
                service="my log",
                sentinel_options={"ssl": True, "ssl_ca_certs": "/ca.pem"},
            ),
        ),
        (
            "embedded:///data/dir",
            Address("embedded", "embedded:///data/dir", {}, directory=Path("/data/dir")),
        ),
        (
            "embedded:///data/my%20dir",
            Address("embedded", "embedded:///data/my dir", {}, directory=Path("/data/my dir")),
        ),
        ("embedded:", Address("embedded", f"embedded://{HOME}", {}, directory=HOME)),
        ("embedded://", Address("embedded", f"embedded://{HOME}", {}, directory=HOME)),
    ],
)
def test_every_form_of_url_names_its_store(url: str, address: Address) -> None:
    assert resolve(url, HOME)._asdict() == address._asdict()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost",
        "localhost:6379",
        "redis://a..b",
        "redis://\udcff",
        "http://h",
        "redis:h",
        "redis:/h",
        "redis://h:port",
        "redis://h:0",
        "redis://h:65536",
        "redis://h:-1",
        "redis://:7000",
        "redis://h/db",
        "redis://h/-1",
        "redis://h/1/2",
        "redis://h?db=1",
        "redis://h?ssl_ca_certs=/ca.pem",
        "redis://h#1",
        "redis://a,b",
        "redis://a,",
        "redis://[::1",
        "redis://::1",
        "redis://[h]:1",
        "redis://[::1]x",
        "redis://h:",
        "redis://h:١",
        "redis://h\n",
        "redis://h\t:1",
        "rediss://h?ssl_cert_reqs=perhaps",
        "redis+cluster://a,b/1",
        "redis+sentinel://a",
        "redis+sentinel://a/",
        "redis+sentinel://a/log/x",
        "redis+sentinel://a/log?password=x",
        "redis://a?sentinel_password=x",
        "unix://",
        "unix:///",
        "unix://r.sock",
        "unix://run/r.sock",
        "unix:///r.sock?db=one",
        "unix:///r.sock?mode=1",
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        resolve(url, HOME)


@pytest.mark.parametrize(
    ("url", "cure"),
    [
        ("localhost:6379", "did you mean redis://localhost:6379?"),
        ("redis//localhost:6379", "did you mean redis://localhost:6379?"),
        ("redis://localhost:99999", "use one from 1 to 65535"),
        ("localhost", "it begins with one of"),
    ],
)
def test_a_url_that_is_nearly_one_is_refused_with_its_cure(url: str, cure: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(cure)):
        resolve(url, Path("d"))


def test_a_url_of_the_environment_is_said_to_come_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADWATER_URL", "nonsense")
    with pytest.raises(InvalidInput, match=r"what \$HEADWATER_URL or a profile says is not"):
        resolve(None, Path("d"))


@pytest.mark.parametrize(
    "url",
    [
        "pa55word",
        "me:pa55word@h",
        "redis://me:pa55/word@h:6379",
        "redis://me:/pa55word@h:6379",
        "redis://me:pa55?word@h:6379",
        "redis://me:pa55#word@h:6379",
        "redis://me:pa55word",
        "redis://:pa55word",
        "redis://me:pa55word@h:x",
        "redis://me:pa55word@h:99999",
        "redis://me:pa55word@a,b",
        "redis://me:pa55word@h/x",
        "redis://me:pa55word@h?x=1",
        "redis://me:pa55word@[h",
        "redis://me:pa55word\x07@h",
        "redis+cluster://me:pa55word@a,b/1",
        "redis+sentinel://me:pa55word@a/log/x",
        "redis+sentinel://a/log?sentinel_password=pa55@word",
        "redis+sentinel://a/log?sentinel_password=pa55word&x=1",
        "unix://me:pa55word@h/r.sock",
    ],
)
def test_no_error_about_a_url_shows_its_password(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        resolve(url, HOME)
    assert "pa55" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_an_address_shows_itself_without_its_secrets() -> None:
    address = resolve("redis://me:secret@h", HOME)
    assert repr(address) == "Address('redis://h:6379')"


def test_without_a_url_the_environment_decides_then_the_embedded_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(URL_VARIABLE, "redis://h:7000")
    assert resolve(None, HOME).safe == "redis://h:7000"
    assert resolve("redis://other", HOME).safe == "redis://other:6379"
    monkeypatch.setenv(URL_VARIABLE, "")
    assert resolve(None, HOME).directory == HOME
    monkeypatch.delenv(URL_VARIABLE)
    assert resolve(None, HOME).directory == HOME
