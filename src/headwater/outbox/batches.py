"""The ledger of batches: which rows of an outbox became which offsets, the newest 10,000 batches.

The leader writes it in the transaction that deletes the rows, one line for each stream of a batch
and none for a row. So a message is traced back to its row, and a row to its message, long after the
row is gone. A batch that was repeated after a crash has the line of whoever ended it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.outbox.runs import Runs, count_ids, id_at, place_of, read_runs, runs_of, spell_runs

if TYPE_CHECKING:
    from headwater.outbox.database import OutboxDatabase

KEPT: Final = 10_000
_PRUNED_EVERY: Final = 100
# Rows of many transactions that took turns: their ids would take more than they tell.
_MOST_CHARS: Final = 2000


class AppendedPart(NamedTuple):
    """What of a batch went to one stream: its offsets, and the places of its rows in the batch.

    ``places`` is None when all rows went there.
    """

    stream: str
    offsets: range
    places: Sequence[int] | None


class StreamedBatch(NamedTuple):
    """A line of the ledger."""

    batch: int
    stream: str
    producer: str
    first_offset: int
    last_offset: int
    first_id: int
    last_id: int
    ids: str
    staged_first_ms: int | None
    staged_last_ms: int | None
    claimed_ms: int

    def row_of(self, offset: int) -> int | None:
        """Return the id of the row that became an offset; None when that is not kept."""
        return id_at(self._runs, offset - self.first_offset)

    def offset_of(self, row: int) -> int | None:
        """Return the offset of a row; None when it is not of this stream, or that is not kept."""
        place = place_of(self._runs, row)
        return None if place is None else self.first_offset + place

    @property
    def _runs(self) -> Runs:
        runs = read_runs(self.ids)
        return runs if count_ids(runs) == self.last_offset - self.first_offset + 1 else []


class StagedRow(NamedTuple):
    """A row that is in the outbox still."""

    stream: str
    staged_ms: int


def note_batch(
    database: OutboxDatabase, producer: str, batch: int, runs: Runs, parts: Sequence[AppendedPart]
) -> None:
    """Write the lines of a batch whose rows are in the log and not deleted yet."""
    # They are spelled out once, however many streams there are.
    apart = any(part.places is not None for part in parts)
    rows = [number for first, last in runs for number in range(first, last + 1)] if apart else []
    lines = []
    for part in parts:
        own = runs if part.places is None else _some(rows, part.places)
        if not own or not part.offsets:
            continue
        ids = spell_runs(own)
        lines.append(
            StreamedBatch(
                batch,
                part.stream,
                producer,
                part.offsets[0],
                part.offsets[-1],
                own[0][0],
                own[-1][1],
                ids if len(ids) <= _MOST_CHARS else "",
                None,
                None,
                0,
            )
        )
    database.note_batch(lines)
    if batch % _PRUNED_EVERY == 0:
        database.prune_batches(batch - KEPT)


def _some(rows: Sequence[int], places: Sequence[int]) -> Runs:
    return runs_of([rows[place] for place in places]) if places[-1] < len(rows) else []
