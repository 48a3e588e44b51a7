"""The SQL of the streamer that is the same on every database except for parameters and clock."""

from __future__ import annotations

from typing import Final, NamedTuple

from headwater.outbox.schema import batches_table, headers_table
from headwater.sql.schemas import HAS_VERSIONS, VERSION

# A role that was granted its rights before this table was there streams without the ledger.
_HAS_BATCHES: Final = {
    "postgresql": "SELECT 1 WHERE has_table_privilege(to_regclass('headwater_batches'), 'SELECT') "
    "AND has_table_privilege(to_regclass('headwater_batches'), 'INSERT') "
    "AND has_table_privilege(to_regclass('headwater_batches'), 'UPDATE') "
    "AND has_table_privilege(to_regclass('headwater_batches'), 'DELETE')"
}


class Statements(NamedTuple):
    """The SQL that is the same on every database except for its parameters and its clock."""

    has_versions: str
    version: str
    has_headers: str
    headed: str
    control: str
    mark: str
    listed: str
    claimed_ms: str
    now_ms: str
    staged: str
    checkpoints: str
    has_batches: str
    staged_times: str
    note_batch: str
    prune_batches: str
    batch_of_offset: str
    batches_of_row: str
    staged_row: str
    rate: str


def spell_statements(dialect: str, parameter: str, clock: str, row_bytes: str) -> Statements:
    """Write the statements for one kind of database.

    ``parameter`` stands for a parameter, ``clock`` reads the time in ms, and ``row_bytes`` is at
    least the size of a row.
    """
    found = Statements(
        has_versions=HAS_VERSIONS[dialect],
        version=VERSION.replace(":package", "?"),
        has_headers=HAS_VERSIONS[dialect].replace("headwater_schemas", headers_table.name),
        headed="SELECT 1 FROM headwater_outbox_headers WHERE id BETWEEN ? AND ? LIMIT 1",
        control="SELECT producer, batch, claimed FROM headwater_streamer WHERE name = ?",
        mark=f"UPDATE headwater_streamer "
        f"SET producer = ?, batch = ?, claimed = ?, claimed_ms = {clock} "
        "WHERE name = ? AND producer = ? AND batch = ?",
        listed=f"SELECT id, {row_bytes} FROM headwater_outbox ORDER BY id LIMIT ?",
        claimed_ms="SELECT claimed_ms FROM headwater_streamer WHERE name = ?",
        now_ms=f"SELECT {clock}",
        # Each end by itself: SQLite finds only one of them in an index at a time.
        staged="SELECT (SELECT count(*) FROM (SELECT 1 FROM headwater_outbox LIMIT ?) AS counted), "
        "(SELECT max(id) FROM headwater_outbox) - (SELECT min(id) FROM headwater_outbox) + 1, "
        "(SELECT staged_ms FROM headwater_outbox ORDER BY id LIMIT 1)",
        checkpoints="SELECT consumer, stream, next_offset, updated_ms FROM headwater_checkpoints "
        "ORDER BY 1, 2",
        has_batches=_HAS_BATCHES.get(dialect)
        or HAS_VERSIONS[dialect].replace("headwater_schemas", batches_table.name),
        # Of rows that are about to go, all streams of a batch at once.
        staged_times="SELECT stream, min(staged_ms), max(staged_ms) FROM headwater_outbox "
        "WHERE id BETWEEN ? AND ? GROUP BY stream",
        note_batch="INSERT INTO headwater_batches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
        "(SELECT claimed_ms FROM headwater_streamer WHERE name = ?)) "
        "ON CONFLICT (batch, stream) DO UPDATE SET producer = excluded.producer, "
        "first_offset = excluded.first_offset, last_offset = excluded.last_offset, "
        "first_id = excluded.first_id, last_id = excluded.last_id, ids = excluded.ids, "
        "staged_first_ms = excluded.staged_first_ms, staged_last_ms = excluded.staged_last_ms, "
        "claimed_ms = excluded.claimed_ms",
        prune_batches="DELETE FROM headwater_batches WHERE batch <= ?",
        batch_of_offset="SELECT * FROM headwater_batches WHERE stream = ? "
        "AND first_offset <= ? AND last_offset >= ? ORDER BY batch DESC LIMIT 1",
        batches_of_row="SELECT * FROM headwater_batches WHERE first_id <= ? AND last_id >= ? "
        "ORDER BY batch DESC LIMIT 100",
        staged_row="SELECT stream, staged_ms FROM headwater_outbox WHERE id = ?",
        rate="SELECT sum(last_offset - first_offset + 1), min(claimed_ms), count(DISTINCT batch) "
        "FROM headwater_batches WHERE batch > ? AND claimed_ms >= ?",
    )
    return Statements._make(text.replace("?", parameter) for text in found)
