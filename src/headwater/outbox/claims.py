"""Which rows are on their way to the log, and how the next ones follow: the database's side.

A claim is the control row: a producer, a batch number, and the exact ids of the batch. It is
written before the batch is appended and replaced after, so that whoever finds it knows that these
rows, and no others, may be in the log under that producer and number already. One transaction does
a whole turn: it deletes the rows of the last claim and writes the next one. Whoever lost the lead
without knowing it fails in that turn, because the control row no longer names its batch.

Rows are taken in the order of their ids out of one snapshot at a time. That keeps the order of
every transaction: a snapshot has all rows of a transaction or none. Ids decide nothing else; a row
with a low id that commits late is in a later snapshot. A snapshot lists many batches' worth of
ids, because finding the first row behind a million deleted ones is not free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from headwater.outbox.database import Control, Database, Row

Steps: TypeAlias = Callable[[str], None]

# What one append may carry is 64 MB, and one value 16 MB.
_BATCH_BYTES = 32 * 1024 * 1024
_LISTED_BATCHES = 20


class LostLead(Exception):
    """Another streamer has moved the control row."""


class Batch(NamedTuple):
    """What is to be appended: its name, and its rows in order."""

    producer: str
    number: int
    rows: list[Row]


class Claims:
    """The claims of one leader, from the first one it finds to the last one it makes."""

    def __init__(self, database: Database, producer: str, most: int, steps: Steps) -> None:
        self._database = database
        self._producer = producer
        self._most = most
        self._steps = steps
        self._listed: deque[tuple[int, int]] = deque()
        self._control = database.control()
        self._ids = read_ids(self._control.claimed)

    @property
    def unfinished_ids(self) -> list[int]:
        """The rows of the last claim, when they may still be there."""
        return self._ids

    @property
    def age_ms(self) -> int:
        """How long ago the last claim was made, by the database's clock."""
        return self._database.now_ms() - self._database.claimed_ms()

    def unfinished(self) -> Batch | None:
        """Give the batch that the last leader may have left half-way; it must be appended again."""
        if not self._ids:
            return None
        rows = self._database.rows(self._ids)
        return Batch(self._control.producer, self._control.batch, rows)

    def next(self, *, more: bool = True) -> Batch | None:
        """Delete what the last batch carried, which must be in the log, and claim the next one.

        Returns None when nothing is staged, or when no ``more`` is wanted. Raises LostLead when
        another streamer went on meanwhile; then nothing was changed.
        """
        if not self._ids and not (more and self._look()):
            return None
        with self._database.transaction():
            if self._ids:
                self._database.delete(self._ids)
                self._steps("deleted")
            ids = self._take() if more and self._look() else []
            old = self._control
            new = old._replace(claimed="")
            if ids:
                new = Control(self._producer, old.batch + 1, spell_ids(ids))
            if not self._database.mark(old, new):
                raise LostLead
            self._steps("marked")
            rows = self._database.rows(ids) if ids else []
            self._steps("committing")
        self._control, self._ids = new, ids
        self._steps("claimed" if ids else "cleared")
        return Batch(new.producer, new.batch, rows) if ids else None

    def _look(self) -> bool:
        if not self._listed:
            self._listed.extend(self._database.listed(self._most * _LISTED_BATCHES))
        return bool(self._listed)

    def _take(self) -> list[int]:
        ids: list[int] = []
        size = 0
        while self._listed and len(ids) < self._most:
            size += self._listed[0][1]
            if ids and size > _BATCH_BYTES:
                break
            ids.append(self._listed.popleft()[0])
        return ids


def spell_ids(ids: Sequence[int]) -> str:
    """Spell ids as runs of neighbours: 1-1000,1007; every id is named, no other is."""
    runs: list[str] = []
    start = 0
    for place in range(1, len(ids) + 1):
        if place == len(ids) or ids[place] != ids[place - 1] + 1:
            first, last = ids[start], ids[place - 1]
            runs.append(str(first) if first == last else f"{first}-{last}")
            start = place
    return ",".join(runs)


def read_ids(text: str) -> list[int]:
    """Read what spell_ids wrote."""
    ids: list[int] = []
    for run in text.split(",") if text else ():
        first, _, last = run.partition("-")
        ids.extend(range(int(first), int(last or first) + 1))
    return ids
