"""A table to read from, for tests that need any."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa


def small_table(directory: Path, rows: int = 30) -> str:
    """Make a table ``t`` of ``id``, ``word`` and ``raw`` in SQLite; returns its URL."""
    url = f"sqlite:///{directory / 'small.db'}"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT, raw BLOB)")
        values = ", ".join(f"({i}, 'w{i}', x'{i % 256:02x}')" for i in range(rows))
        connection.exec_driver_sql(f"INSERT INTO t VALUES {values}")
    engine.dispose()
    return url
