"""A Postgres database, by psycopg and ADBC: for processes that share no engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import make_conninfo
from sqlalchemy import URL

from headwater.errors import DatabaseUnreachable, InvalidInput
from headwater.sql.driver_errors import reason_of
from headwater.sql.safe_names import safe_name

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection as ArrowConnection


class PostgresServer:
    """A Postgres database; it holds no connection, so that it can be pickled."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self.where = safe_name(url)
        words: dict[str, Any] = url.translate_connect_args(username="user", database="dbname")
        words |= {name: ",".join(values) for name, values in url.normalized_query.items()}
        try:
            self._conninfo = make_conninfo(**words)
        except psycopg.ProgrammingError as error:
            raise InvalidInput(
                f"the URL of the database at {self.where} cannot be used: {self.reason(error)}; "
                "correct its parameters"
            ) from None

    def reason(self, error: BaseException) -> str:
        """Return what a driver says, on one line and without secrets."""
        return reason_of(error, self._url)

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Connect in autocommit mode. Raises DatabaseUnreachable."""
        try:
            return psycopg.connect(self._conninfo, autocommit=True)
        except psycopg.OperationalError as error:
            raise DatabaseUnreachable(self.where, self.reason(error)) from None

    def connect_adbc(self) -> ArrowConnection:
        """Connect by ADBC, which brings and takes Arrow. Raises DatabaseUnreachable."""
        from adbc_driver_manager import OperationalError
        from adbc_driver_postgresql import dbapi

        try:
            connection: ArrowConnection = dbapi.connect(self._conninfo, autocommit=True)
        except OperationalError as error:
            raise DatabaseUnreachable(self.where, self.reason(error)) from None
        return connection
