"""The positions of consumers, in SQL: one row per consumer and stream.

A position only moves by compare-and-set, in the transaction that holds the effects of the messages
it moves over. The update comes first: it locks the row on Postgres and the file on SQLite, so that
a second process of the same name waits, and then finds that it was overtaken.

The history of the stream that a position belongs to has a row of its own, as it changes only when
the server does.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Delete, Insert, Select, Update, bindparam, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from headwater.outbox.schema import checkpoints_table as table
from headwater.outbox.schema import histories_table as histories

_THIS = (table.c.consumer == bindparam("who"), table.c.stream == bindparam("place"))

# Takes: who, place.
LOAD: Select[tuple[int]] = select(table.c.next_offset).where(*_THIS)
REMOVE: Delete = delete(table).where(*_THIS)

_ITS_HISTORY = (histories.c.consumer == bindparam("who"), histories.c.stream == bindparam("place"))
LOAD_HISTORY: Select[tuple[str]] = select(histories.c.history).where(*_ITS_HISTORY)
FORGET_HISTORY: Delete = delete(histories).where(*_ITS_HISTORY)

# Takes: who, place, old, new, now_ms. Changes one row, or none when another process was faster.
MOVE: Update = (
    update(table)
    .where(*_THIS, table.c.next_offset == bindparam("old"))
    .values(next_offset=bindparam("new"), updated_ms=bindparam("now_ms"))
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

# Take: who, place, new, now_ms. The first leaves a row that is there, the second overwrites it.
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
        },
    ),
    "postgresql": _POSTGRES.on_conflict_do_update(
        index_elements=_KEY,
        set_={
            "next_offset": _POSTGRES.excluded.next_offset,
            "updated_ms": _POSTGRES.excluded.updated_ms,
        },
    ),
}

_HISTORY_ROW: dict[str, Any] = {
    "consumer": bindparam("who"),
    "stream": bindparam("place"),
    "history": bindparam("history"),
}
_HISTORY_KEY = [histories.c.consumer, histories.c.stream]
_SQLITE_HISTORY = sqlite.insert(histories).values(_HISTORY_ROW)
_POSTGRES_HISTORY = postgresql.insert(histories).values(_HISTORY_ROW)

# Takes: who, place, history.
KEEP_HISTORY: dict[str, Insert] = {
    "sqlite": _SQLITE_HISTORY.on_conflict_do_update(
        index_elements=_HISTORY_KEY, set_={"history": _SQLITE_HISTORY.excluded.history}
    ),
    "postgresql": _POSTGRES_HISTORY.on_conflict_do_update(
        index_elements=_HISTORY_KEY, set_={"history": _POSTGRES_HISTORY.excluded.history}
    ),
}
