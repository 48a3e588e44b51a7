"""From the URL of a database to an engine, as the command line, jobs and small programs need it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sqlalchemy import URL, Engine, create_engine, exc, make_url

from headwater.errors import DatabaseUnreachable, InvalidInput
from headwater.sql.safe_names import safe_name

# The dialects of SQLAlchemy that are known here, and the folder that holds SQL for each.
DIALECTS = {"sqlite": "sqlite", "postgresql": "postgres"}

_POSTGRES = {"postgres", "postgresql"}
_FILE = "file:"


def parse_url(text: str) -> URL:
    """Return the parts of ``sqlite:///file`` or ``postgresql://user@host/database``.

    Postgres is reached by psycopg unless the URL names a driver. Raises InvalidInput, which does
    not show the text: what is wrong with it may be in the middle of a password.
    """
    try:
        url = make_url(text)
    except (exc.ArgumentError, ValueError):
        raise _unknown(text) from None
    if url.drivername in _POSTGRES:
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in DIALECTS:
        raise _unknown(text)
    return url


@contextmanager
def open_engine(text: str, *, new: bool = False) -> Iterator[Engine]:
    """Yield an engine for a URL; its connections are closed at the end.

    A SQLite file must exist unless ``new``: a typing error must not create an empty one; its folder
    must exist anyway. Raises InvalidInput and DatabaseUnreachable, which never show a password.
    """
    url = parse_url(text)
    try:
        engine = create_engine(url)
    except (exc.ArgumentError, exc.NoSuchModuleError, ValueError, TypeError, ImportError):
        raise _unknown(text) from None
    file = sqlite_file(url)
    if file is not None and not new and not file.exists():
        raise DatabaseUnreachable(safe_name(url), "there is no such file")
    if file is not None and not file.parent.is_dir():
        raise DatabaseUnreachable(safe_name(url), f"there is no folder {file.parent}")
    try:
        yield engine
    finally:
        engine.dispose()


def is_in_memory(url: URL) -> bool:
    """Return whether a database is in memory only."""
    return url.get_backend_name() == "sqlite" and (
        not url.database
        or ":memory:" in url.database
        or "mode=memory" in url.database
        or "memory" in url.normalized_query.get("mode", ())
    )


def sqlite_file(url: URL) -> Path | None:
    """Return the file of a SQLite database; None when it has none, or is no SQLite database."""
    if url.get_backend_name() != "sqlite" or is_in_memory(url):
        return None
    name = url.database or ""
    return Path(unquote(urlsplit(name).path) if name.startswith(_FILE) else name)


def _unknown(text: str) -> InvalidInput:
    scheme = re.match(r"([a-z][a-z0-9+.-]*)://", text)
    if not scheme and re.fullmatch(r"[\w./~-]+\.(db|sqlite3?)", text):
        # The name of a file: it holds no password.
        return InvalidInput(
            f"{text!r} is not the URL of a database; did you mean sqlite:///{text}?"
        )
    what = f"{scheme[1]}://" if scheme else "this text"
    return InvalidInput(
        f"{what} is not the URL of a database that is known here; "
        "use sqlite:///file or postgresql://user:password@host/database"
    )
