"""Which rows are on their way to the log, and how the next ones follow: the database's side.

A claim is the control row: a producer, a batch number, and the exact ids of the batch. It is
written before the batch is appended and replaced after, so that a streamer that finds it knows that
these rows, and no others, may be in the log under that producer and number already. One transaction
does a whole turn: it deletes the rows of the last claim and writes the next one. A streamer that
lost the lead without knowing it fails in that turn, because the control row no longer names its
batch.

Rows are taken in the order of their ids out of one snapshot at a time. That keeps the order of
every transaction: a snapshot has all rows of a transaction or none. Ids decide nothing else; a row
with a low id that commits late is in a later snapshot. A snapshot lists the ids of many batches,
because to find the first row behind a million deleted ones takes time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, takewhile
from typing import NamedTuple, TypeAlias

from headwater.outbox.batches import AppendedPart, note_batch
from headwater.outbox.database import Control, OutboxDatabase, Row
from headwater.outbox.runs import Runs, count_ids, read_runs, runs_of, spell_runs

Steps: TypeAlias = Callable[[str], None]

# One append may carry 64 MB, and one value 16 MB.
_BATCH_BYTES = 32 * 1024 * 1024
_LISTED_BATCHES = 20


# The end of the name of a producer whose batches carry the ids of their rows as a header. A claim
# keeps the name, so whoever repeats the batch does so in the same manner.
ID_HEADER = "+id"


class LostLead(Exception):
    """Another streamer has moved the control row."""


class ClaimedBatch(NamedTuple):
    """What is to be appended: its producer and number, and its rows in order."""

    producer: str
    number: int
    rows: list[Row]

    @property
    def has_ids(self) -> bool:
        """Whether its messages have the ids of their rows as a header."""
        return _has_ids(self.producer)


class _Ahead(NamedTuple):
    """What the next batch will be."""

    runs: Runs
    rows: list[Row]


_NOTHING = _Ahead([], [])


class Claims:
    """The claims of one leader, from the first one it finds to the last one it makes."""

    def __init__(self, database: OutboxDatabase, producer: str, most: int, steps: Steps) -> None:
        self._database = database
        self._producer = producer
        self._most = most
        self._steps = steps
        self._listed: Sequence[tuple[int, int]] = ()
        self._at = 0
        self._ahead = _NOTHING
        self._control = database.control()
        self._runs = read_runs(self._control.claimed)
        self._parts: Sequence[AppendedPart] = ()

    @property
    def claimed(self) -> int:
        """How many rows the last claim names that may still be there."""
        return count_ids(self._runs)

    @property
    def age_ms(self) -> int:
        """How long ago the last claim was made, by the database's clock."""
        return self._database.now_ms() - self._database.claimed_ms()

    def unfinished(self) -> ClaimedBatch | None:
        """Return the batch that the last leader may have left half-way, to be appended again."""
        if not self._runs:
            return None
        with_ids = _has_ids(self._control.producer)
        rows = self._database.batch_rows(self._runs, with_ids)
        return ClaimedBatch(self._control.producer, self._control.batch, rows)

    def appended(self, parts: Sequence[AppendedPart]) -> None:
        """Take note of where the rows of the last batch are in the log, for the ledger."""
        self._parts = parts

    def next(self, *, more: bool = True) -> ClaimedBatch | None:
        """Delete what the last batch carried, which must be in the log, and claim the next one.

        Returns None when nothing is staged, or when no ``more`` is wanted. Raises LostLead when
        another streamer continued meanwhile; then nothing was changed.
        """
        if not self._runs and not (more and self._look()):
            return None
        with self._database.transaction():
            if self._runs:
                producer, batch, _ = self._control
                note_batch(self._database, producer, batch, self._runs, self._parts)
                self._database.delete_batch(self._runs)
                self._steps("deleted")
            if more and not self._ahead.runs and self._look():
                self.read_ahead()
            runs, rows = self._ahead if more else _NOTHING
            old = self._control
            new = old._replace(claimed="")
            if runs:
                new = Control(self._producer, old.batch + 1, spell_runs(runs))
            if not self._database.mark(old, new):
                raise LostLead
            self._steps("marked")
            self._steps("committing")
        self._control, self._runs, self._ahead, self._parts = new, runs, _NOTHING, ()
        self._steps("claimed" if runs else "cleared")
        return ClaimedBatch(new.producer, new.batch, rows) if runs else None

    def read_ahead(self) -> None:
        """Read the rows of the next batch, if it is listed already; they do not change any more."""
        runs = self._take()
        self._ahead = _NOTHING
        if runs:
            rows = self._database.batch_rows(runs, _has_ids(self._producer))
            self._ahead = _Ahead(runs, rows)

    def _look(self) -> bool:
        if self._at == len(self._listed):
            self._listed = self._database.listed(self._most * _LISTED_BATCHES)
            self._at = 0
        return bool(self._listed)

    def _take(self) -> Runs:
        part = self._listed[self._at : self._at + self._most]
        if sum(size for _, size in part) > _BATCH_BYTES:
            within = takewhile(lambda total: total <= _BATCH_BYTES, accumulate(s for _, s in part))
            part = part[: max(sum(1 for _ in within), 1)]
        self._at += len(part)
        return runs_of([number for number, _ in part])


def _has_ids(producer: str) -> bool:
    return producer.endswith(ID_HEADER)
