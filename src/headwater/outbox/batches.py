"""Batches of the outbox: runs of ids, the ledger of the newest batches, their traces.

The leader writes it in the transaction that deletes the rows, one line for each stream of a batch
and none for a row. So a message is traced back to its row, and a row to its message, long after the
row is gone. A batch that was repeated after a crash has the line of whoever ended it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from headwater.kernel.headers import Headers
from headwater.kernel.instrument import current

if TYPE_CHECKING:
    from headwater.outbox.database import OutboxDatabase


# ── Runs ──────────────────────────────────────────────────────────────────────────────────────────
# Runs of ids: ascending ids without a gap, as first and last; written as 1-1000,1007.


# Ids without a gap between the first and the last of each, both included; ascending.
Runs: TypeAlias = list[tuple[int, int]]


def runs_of(ids: Sequence[int]) -> Runs:
    """Return the runs of ascending ids without a gap: they hold these ids, and no others."""
    if ids and ids[-1] - ids[0] == len(ids) - 1:
        return [(ids[0], ids[-1])]
    runs: Runs = []
    start = 0
    for place in range(1, len(ids) + 1):
        if place == len(ids) or ids[place] != ids[place - 1] + 1:
            runs.append((ids[start], ids[place - 1]))
            start = place
    return runs


def spell_runs(runs: Runs) -> str:
    """Write runs of ids as 1-1000,1007."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def read_runs(text: str) -> Runs:
    """Read what spell_runs wrote."""
    runs: Runs = []
    for run in text.split(",") if text else ():
        first, _, last = run.partition("-")
        runs.append((int(first), int(last or first)))
    return runs


def count_ids(runs: Runs) -> int:
    """Return how many ids are in runs."""
    return sum(last - first + 1 for first, last in runs)


def id_at(runs: Runs, place: int) -> int | None:
    """Return the id at a place, counted from 0; None beyond the end."""
    for first, last in runs:
        if 0 <= place <= last - first:
            return first + place
        place -= last - first + 1
    return None


def place_of(runs: Runs, number: int) -> int | None:
    """Return the place of an id, counted from 0; None when it is not there."""
    before = 0
    for first, last in runs:
        if first <= number <= last:
            return before + number - first
        before += last - first + 1
    return None


# ── Batches ───────────────────────────────────────────────────────────────────────────────────────


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


# ── Traced rows ───────────────────────────────────────────────────────────────────────────────────
# Rows of a batch as traces see them: by their headers, which may hold the context of a trace.


# As many links a span has, by the default of the SDK of OpenTelemetry.
_LINKED: Final = 128


class TracedRow(NamedTuple):
    """A staged row, of which an instrument sees the headers alone."""

    headers: Headers


def traced_rows(headers: Sequence[bytes] | None) -> list[TracedRow]:
    """Return the rows whose traces a batch is linked to; none while nobody makes traces."""
    if headers is None or current() is None:
        return []
    return [TracedRow(Headers.stored(one)) for one in headers[:_LINKED]]
