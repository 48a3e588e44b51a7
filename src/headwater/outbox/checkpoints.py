"""The positions of consumers, in SQL: one row per consumer and stream.

A position only moves by compare-and-set, in the transaction that holds the effects of the messages
it moves over. The update comes first: it locks the row on Postgres and the file on SQLite, so that
a second process of the same name waits, and then finds that it was overtaken.

The history of the stream that a position belongs to is beside it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Delete, Insert, Select, Update, bindparam, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from headwater.outbox.schema import checkpoints_table as table

_THIS = (table.c.consumer == bindparam("who"), table.c.stream == bindparam("place"))

# Takes: who, place.
LOAD: Select[tuple[int]] = select(table.c.next_offset).where(*_THIS)
LOAD_HISTORY: Select[tuple[str | None]] = select(table.c.history).where(*_THIS)
REMOVE: Delete = delete(table).where(*_THIS)

# Takes: who, place, old, new, now_ms, history. Changes one row, or none when another process was
# faster.
MOVE: Update = (
    update(table)
    .where(*_THIS, table.c.next_offset == bindparam("old"))
    .values(
        next_offset=bindparam("new"), updated_ms=bindparam("now_ms"), history=bindparam("history")
    )
)

# Takes: who, place. Locks the row, if there is one: nobody moves the position until the commit.
HOLD: Update = update(table).where(*_THIS).values(next_offset=table.c.next_offset)

_ROW: dict[str, Any] = {
    "consumer": bindparam("who"),
    "stream": bindparam("place"),
    "next_offset": bindparam("new"),
    "updated_ms": bindparam("now_ms"),
}
_KEY = [table.c.consumer, table.c.stream]
_SQLITE = sqlite.insert(table).values(_ROW)
_POSTGRES = postgresql.insert(table).values(_ROW)

# Take: who, place, new, now_ms. The first leaves a row that is there, the second overwrites it,
# and forgets its history.
CREATE: dict[str, Insert] = {
    "sqlite": _SQLITE.on_conflict_do_nothing(),
    "postgresql": _POSTGRES.on_conflict_do_nothing(),
}
PLACE: dict[str, Insert] = {
    "sqlite": _SQLITE.on_conflict_do_update(
        index_elements=_KEY,
        set_={
            "next_offset": _SQLITE.excluded.next_offset,
            "updated_ms": _SQLITE.excluded.updated_ms,
            "history": None,
        },
    ),
    "postgresql": _POSTGRES.on_conflict_do_update(
        index_elements=_KEY,
        set_={
            "next_offset": _POSTGRES.excluded.next_offset,
            "updated_ms": _POSTGRES.excluded.updated_ms,
            "history": None,
        },
    ),
}
