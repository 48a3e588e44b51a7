"""The tables of the outbox: as SQL files to run, and as SQLAlchemy tables to query.

The files in ``sql/`` are the one definition; a test compares the tables below with them.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Dialect, Integer, LargeBinary, MetaData, Table, Text

from headwater.errors import InvalidInput
from headwater.sql.engines import DIALECTS
from headwater.sql.schemas import Schema

SCHEMA = Schema(__package__)

# A listener here is woken by every commit that staged something; Postgres only.
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
    Column("headers", LargeBinary, nullable=False),
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

batches_table = Table(
    "headwater_batches",
    metadata,
    Column("batch", BigInteger, primary_key=True),
    Column("stream", Text, primary_key=True),
    Column("producer", Text, nullable=False),
    Column("first_offset", BigInteger, nullable=False),
    Column("last_offset", BigInteger, nullable=False),
    Column("first_id", BigInteger, nullable=False),
    Column("last_id", BigInteger, nullable=False),
    Column("ids", Text, nullable=False),
    Column("staged_first_ms", BigInteger),
    Column("staged_last_ms", BigInteger),
    Column("claimed_ms", BigInteger, nullable=False),
)

checkpoints_table = Table(
    "headwater_checkpoints",
    metadata,
    Column("consumer", Text, primary_key=True),
    Column("stream", Text, primary_key=True),
    Column("next_offset", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Column("history", Text),
)

given_up_table = Table(
    "headwater_given_up",
    metadata,
    Column("consumer", Text, primary_key=True),
    Column("stream", Text, primary_key=True),
    Column("created", BigInteger, primary_key=True),
    Column("message_offset", BigInteger, primary_key=True),
)


def statements(dialect: str) -> tuple[str, ...]:
    """Return the statements that create the tables, for a dialect as SQLAlchemy names it.

    For migrations of your own. Each may be run again. Raises InvalidInput for a dialect that is
    neither "sqlite" nor "postgresql".
    """
    _check_name(dialect)
    return SCHEMA.statements(dialect)


def check_dialect(dialect: Dialect) -> str:
    """Return the name of a dialect that the outbox knows; raises InvalidInput for others."""
    _check_name(dialect.name)
    return dialect.name


def _check_name(dialect: str) -> None:
    if dialect not in DIALECTS:
        raise InvalidInput(
            f"the outbox needs SQLite or Postgres, not {dialect}; use an engine of one of them"
        )
