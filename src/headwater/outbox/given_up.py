"""Which messages a consumer has given up, in SQL: its dead letters count as long as they are noted.

A dead letter is in the log, the position in SQL, and one is written before the other. So a letter
alone does not say that its message was given up: its consumer may have been killed before the
position moved, or another process of its name may have applied the message meanwhile. What counts
is a note, which is written in the transaction that moves the position over the message. A redrive
deletes it in the transaction that applies the letter, so that a message has its effect once,
however many letters of it there are, and whoever else redrives. A discard deletes it without that.

Whoever sets the position back deletes the notes of the messages that are handled again. Notes of
messages that the log has evicted stay: their letters are all that is left to handle. So do those of
a stream that was deleted: note and letter know which stream of a name they are of, by the mark of
its creation (``created`` of an Extent), as another one has other messages at the same offsets.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Delete, Insert, Select, bindparam, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from headwater.outbox.schema import given_up_table as table

_NAMED = (table.c.consumer == bindparam("who"), table.c.stream == bindparam("place"))
_THIS = (*_NAMED, table.c.created == bindparam("created"))
_ROW: dict[str, Any] = {
    "consumer": bindparam("who"),
    "stream": bindparam("place"),
    "created": bindparam("created"),
    "message_offset": bindparam("message"),
}

# Takes: who, place. Finds whether the table is there.
LOOK: Select[tuple[int]] = select(table.c.message_offset).where(*_NAMED).limit(1)

# Take: who, place, created, message.
NOTE: dict[str, Insert] = {
    "sqlite": sqlite.insert(table).values(_ROW).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(table).values(_ROW).on_conflict_do_nothing(),
}
CLAIM: Delete = delete(table).where(*_THIS, table.c.message_offset == bindparam("message"))

# Take: who, place, created, first; the second also last.
FORGET_FROM: Delete = delete(table).where(*_THIS, table.c.message_offset >= bindparam("first"))
FORGET_BETWEEN: Delete = FORGET_FROM.where(table.c.message_offset <= bindparam("last"))
