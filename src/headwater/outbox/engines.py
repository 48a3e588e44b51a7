"""From the URL of a database to an engine, as the command line and small programs need it."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine, create_engine, exc, make_url

from headwater.errors import DatabaseUnreachable, InvalidInput
from headwater.outbox.database import is_in_memory

_POSTGRES = {"postgres", "postgresql"}


def open_engine(url: str, *, new: bool = False) -> Engine:
    """Give an engine for ``sqlite:///file`` or ``postgresql://user@host/database``.

    A SQLite file must be there unless ``new``: a slip of the pen must not make an empty one.
    Raises InvalidInput and DatabaseUnreachable, which never show a password.
    """
    try:
        parsed = make_url(url)
        if parsed.drivername in _POSTGRES:
            parsed = parsed.set(drivername="postgresql+psycopg")
        engine = create_engine(parsed)
    except (exc.ArgumentError, exc.NoSuchModuleError, ValueError, ImportError) as error:
        # What is wrong with it may be in the middle of a password.
        scheme = url.partition(":")[0] if "://" in url else "it"
        raise InvalidInput(
            f"{scheme} is not the URL of a database that is known here; "
            "use sqlite:///file or postgresql://user:password@host/database"
        ) from error
    file = Path((parsed.database or "").removeprefix("file:").partition("?")[0])
    kept_in_file = engine.dialect.name == "sqlite" and not is_in_memory(parsed)
    if kept_in_file and not new and not file.exists():
        raise DatabaseUnreachable(str(parsed), "there is no such file")
    return engine
