"""A consumer whose database user may do less than it needs: an error with a cure, nothing lost."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from headwater import DatabaseRefused
from tests.support.consumers import Desk, drain
from tests.support.entries import entries


@contextlib.contextmanager
def reading_only(desk: Desk) -> Iterator[None]:
    """Take away the right to change our tables from all connections that are made meanwhile."""
    role = f"reader_{secrets.token_hex(4)}"
    limit = "PRAGMA query_only = 1"
    if desk.engine.dialect.name == "postgresql":
        with desk.engine.begin() as conn:
            conn.exec_driver_sql(f"CREATE ROLE {role}")
            conn.exec_driver_sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
            conn.exec_driver_sql(f"GRANT INSERT ON effects TO {role}")
        limit = f"SET ROLE {role}"

    def restrict(connection: Any, _: object) -> None:
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.execute(limit)
        connection.commit()

    engine = desk.engine if desk.manner == "sync" else desk.async_engine.sync_engine
    desk.dispose()
    sa.event.listen(engine, "connect", restrict)
    try:
        yield
    finally:
        sa.event.remove(engine, "connect", restrict)
        desk.dispose()


def test_a_missing_right_is_named_and_nothing_is_lost_or_applied_twice(
    desk: Desk, name: str
) -> None:
    desk.hw.stream(name).write_many(entries(2))
    reader = desk.consumer("c", name)
    assert drain(reader) == 2
    desk.hw.stream(name).write_many(entries(2))
    with reading_only(desk), pytest.raises(DatabaseRefused, match="give the user the rights"):
        reader.run_once()
    assert desk.effects("c") == [1, 2]
    assert drain(reader) == 2
    assert desk.effects("c") == [1, 2, 3, 4]
