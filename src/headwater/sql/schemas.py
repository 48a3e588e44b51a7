"""Tables and queries by name. Names are always quoted, so that nothing in them is read as SQL."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only

from headwater.errors import FormatTooNew, InvalidInput
from headwater.sql.driver_errors import is_locked, safe_name
from headwater.sql.engines import DIALECTS

_PART = re.compile(r'"((?:[^"]|"")+)"|([^."]+)')


def quoted(name: str) -> str:
    """Return a name in quotes, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'


class Relation(NamedTuple):
    """What is read or written: a table, by its name or schema and name, or a query."""

    parts: tuple[str, ...]
    query: str | None = None

    @classmethod
    def of(cls, table: str | None, query: str | None = None) -> Relation:
        """Understand what a user named; names are taken as they are written.

        Raises InvalidInput unless it is one of both.
        """
        if (table is None) == (query is None):
            raise InvalidInput("name what to read by one of the options 'table' and 'query'")
        if query is not None:
            return cls((), query.strip().rstrip(";"))
        assert table is not None
        parts, at = [], 0
        while match := _PART.match(table, at):
            parts.append(match[1].replace('""', '"') if match[1] else match[2])
            at = match.end() + 1
            if at > len(table):
                break
            if table[at - 1] != ".":
                parts.clear()
                break
        if at <= len(table) or not 1 <= len(parts) <= 2:
            raise InvalidInput(
                f"option 'table' must be a name or schema.name, not {table!r}; a name that holds "
                'dots is written in double quotes: "a.b"'
            )
        return cls(tuple(parts))

    @property
    def sql(self) -> str:
        """What stands after FROM."""
        if self.query is not None:
            return f"(\n{self.query}\n) AS q"
        return ".".join(quoted(part) for part in self.parts)

    def __str__(self) -> str:
        return "the query" if self.query is not None else f"table {'.'.join(self.parts)}"


# ── Schemas ───────────────────────────────────────────────────────────────────────────────────────
# Tables of our own in a user's database: numbered SQL files, and the one way they are run.
#
# ``<package>/sql/<dialect>/NNNN_name.sql`` is the one definition of a package's tables. Files are
# run in the order of their numbers. Each may be run again, so that users with their own migrations
# may run the same files. Statements are separated by empty lines.
#
# A file that only adds something does not disturb older programs. A file that they cannot work
# with has to record its number in ``headwater_schemas`` (package, version), where none means 1: a
# program that has no file of that number is refused before anything is done.


# Whether any package has noted a version, by dialect; then the version of one, whose name is bound.
HAS_VERSIONS = {
    "sqlite": "SELECT 1 FROM sqlite_master WHERE name = 'headwater_schemas'",
    "postgresql": "SELECT 1 WHERE to_regclass('headwater_schemas') IS NOT NULL",
}
VERSION = "SELECT version FROM headwater_schemas WHERE package = :package"

# Whether the files can be run here: the user may create tables, and owns those that exist.
_MAY_CREATE = """
SELECT has_schema_privilege(current_schema(), 'CREATE') AND NOT EXISTS (
    SELECT 1 FROM unnest(CAST(:names AS text[])) AS name JOIN pg_class ON oid = to_regclass(name)
    WHERE NOT pg_has_role(relowner, 'USAGE')
)"""

# Any number that nobody else in the database uses.
_CREATING = 0x6865616477617465
# SQLite refuses at once, whatever the timeout, when two connections set a mode at the same time.
_PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Schema:
    """The tables of a package. Any number of processes may create them at the same time."""

    def __init__(self, package: str) -> None:
        self._package = package
        # Short, because it is stored in the user's database: "outbox", "sql_sink", "jobs".
        self.name = package.rpartition(".")[2]

    def check_version(self, found: int | None, dialect: str, where: str) -> None:
        """Raise FormatTooNew for a version that the files do not know; None is the first."""
        known = _version(self._package, dialect)
        if found is not None and found > known:
            raise FormatTooNew(f"the schema {self.name!r} in the database at {where}", found, known)

    def check(self, conn: Connection) -> None:
        """Raise FormatTooNew when a newer release has changed the tables."""
        dialect, found = conn.dialect.name, None
        if conn.scalar(sa.text(HAS_VERSIONS[dialect])):
            found = conn.scalar(sa.text(VERSION), {"package": self.name})
        self.check_version(found, dialect, safe_name(conn.engine))

    def statements(self, dialect: str) -> tuple[str, ...]:
        """Return all statements of the files for a dialect of SQLAlchemy, in order."""
        return _statements(self._package, dialect)

    def is_created(self, conn: Connection) -> bool:
        """Return whether every table of the files exists.

        A user who may read and write the tables need not have the right to create them.
        """
        return all(map(sa.inspect(conn).has_table, self._tables(conn)))

    def _tables(self, conn: Connection) -> list[str]:
        text = "\n".join(self.statements(conn.dialect.name))
        return re.findall(r"^CREATE TABLE IF NOT EXISTS (\w+)", text, re.MULTILINE)

    def ensure(self, engine: Engine) -> None:
        """Create the tables unless they exist. Raises FormatTooNew."""
        with engine.connect() as conn:
            self.check(conn)
            found = self.is_created(conn)
        if not found:
            self.create(engine)

    def create(self, engine: Engine) -> None:
        """Run the files, in one transaction. A SQLite file is set to WAL mode first.

        Where a user of Postgres may not run them and every table exists, nothing is done.
        Raises FormatTooNew, before anything is done, when a newer release has changed the tables.
        """
        with engine.connect() as conn:
            self._create(conn, time.sleep)

    async def create_async(self, engine: AsyncEngine) -> None:
        """Run the files as ``create`` does."""

        def sleep(seconds: float) -> None:
            await_only(asyncio.sleep(seconds))

        async with engine.connect() as conn:
            await conn.run_sync(self._create, sleep)

    def _create(self, conn: Connection, sleep: Callable[[float], None]) -> None:
        for pause in (*_PAUSES_S, None):
            try:
                return self._create_once(conn)
            except Exception as error:
                if pause is None or not is_locked(error):
                    raise
            sleep(pause)
        return None

    def _create_once(self, conn: Connection) -> None:
        sqlite = conn.dialect.name == "sqlite"
        with conn.begin():
            self.check(conn)
            if not sqlite and self.is_created(conn):
                asked = {"names": self._tables(conn)}
                if not conn.scalar(sa.text(_MAY_CREATE), asked):
                    return
        if sqlite:
            # On the driver's own connection: no mode can be set in a transaction.
            conn.connection.cursor().execute("PRAGMA journal_mode = WAL")
        with conn.begin():
            driver: Any = conn.connection.driver_connection
            if not sqlite:
                # IF NOT EXISTS looks before it creates, so that two at once both create.
                conn.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_CREATING})")
            elif not driver.in_transaction:
                conn.exec_driver_sql("BEGIN IMMEDIATE")
            # Check again, because another process may have changed them while this one waited for
            # the lock.
            self.check(conn)
            for statement in self.statements(conn.dialect.name):
                conn.exec_driver_sql(statement)


def _files(package: str, dialect: str) -> list[Traversable]:
    folder = files(package).joinpath("sql", DIALECTS[dialect])
    return sorted(folder.iterdir(), key=lambda file: file.name)


@cache
def _version(package: str, dialect: str) -> int:
    return int(_files(package, dialect)[-1].name[:4])


@cache
def _statements(package: str, dialect: str) -> tuple[str, ...]:
    texts = [file.read_text("utf-8") for file in _files(package, dialect)]
    parts = (part for text in texts for part in re.split(r";\s*(?:\n\s*\n|\Z)", text))
    return tuple(part for part in parts if part.strip())
