"""The tables of the outbox: as SQL files to run, and as SQLAlchemy tables to query.

``sql/<dialect>/NNNN_name.sql`` is the one definition. ``Outbox.create_all`` runs these files in
the order of their numbers; whoever keeps migrations of their own runs the same files. Each may be
run again. A test holds the tables below to what the files create.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from sqlalchemy import BigInteger, Column, Dialect, Integer, LargeBinary, MetaData, Table, Text

from headwater.errors import InvalidInput

DIALECTS = {"sqlite": "sqlite", "postgresql": "postgres"}

# Who listens here is woken by every commit that staged something; Postgres only.
CHANNEL = "headwater_outbox"

# The name of the one row of headwater_streamer.
CONTROL = "outbox"

metadata = MetaData()

outbox_table = Table(
    "headwater_outbox",
    metadata,
    Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True),
    Column("stream", Text, nullable=False),
    Column("tag", Text, nullable=False),
    Column("value", LargeBinary, nullable=False),
    Column("staged_ms", BigInteger, nullable=False),
)

streamer_table = Table(
    "headwater_streamer",
    metadata,
    Column("name", Text, primary_key=True),
    Column("producer", Text, nullable=False),
    Column("batch", BigInteger, nullable=False),
    Column("claimed", Text, nullable=False),
    Column("claimed_ms", BigInteger, nullable=False),
)

checkpoints_table = Table(
    "headwater_checkpoints",
    metadata,
    Column("consumer", Text, primary_key=True),
    Column("stream", Text, primary_key=True),
    Column("next_offset", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
)


def check_dialect(dialect: Dialect) -> str:
    """Give the name of a dialect that the outbox speaks; raises InvalidInput for others."""
    if dialect.name not in DIALECTS:
        raise InvalidInput(
            f"the outbox needs SQLite or Postgres, not {dialect.name}; use an engine of one of them"
        )
    return dialect.name


@cache
def statements(dialect: str) -> tuple[str, ...]:
    """Give all statements of the files for a dialect, in order."""
    folder = files(__package__).joinpath("sql", DIALECTS[dialect])
    texts = [file.read_text("utf-8") for file in sorted(folder.iterdir(), key=lambda f: f.name)]
    parts = (part for text in texts for part in re.split(r";\s*(?:\n\s*\n|\Z)", text))
    return tuple(part for part in parts if part.strip())
