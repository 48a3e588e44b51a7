"""A SQLite file, by Python's own driver: for processes that share the file and no engine."""

from __future__ import annotations

import sqlite3
from urllib.parse import quote

from sqlalchemy import URL

from headwater.errors import DatabaseUnreachable, InvalidInput
from headwater.sql.engines import sqlite_file


class SqliteFile:
    """A SQLite file; it holds no connection, so that it can be pickled."""

    def __init__(self, url: URL) -> None:
        file = sqlite_file(url)
        if file is None:
            raise InvalidInput(
                "a database in memory exists for one process only; use one in a file: "
                "sqlite:///file"
            )
        self.path = file.resolve()
        self.where = f"sqlite:///{self.path}"

    @property
    def read_only_uri(self) -> str:
        """What opens the file to read only."""
        return f"file:{quote(str(self.path))}?mode=ro"

    def check(self) -> None:
        """Raise DatabaseUnreachable when the file is missing; SQLite would create it."""
        if not self.path.is_file():
            raise DatabaseUnreachable(self.where, "there is no such file")

    def connect(self, *, wait_s: float, read_only: bool = False) -> sqlite3.Connection:
        """Connect in autocommit mode; ``wait_s`` is how long it waits for other writers.

        Raises DatabaseUnreachable.
        """
        self.check()
        try:
            return sqlite3.connect(
                self.read_only_uri if read_only else self.path,
                uri=read_only,
                timeout=wait_s,
                isolation_level=None,
            )
        except sqlite3.Error as error:
            raise DatabaseUnreachable(self.where, str(error)) from error
