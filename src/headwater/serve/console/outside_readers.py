"""Readers of a stream outside the log, as the ruler shows them: SQL consumers, archives, Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headwater.metrics.alarms import CONSUMER
from headwater.serve.console.ruler import OutsideReader

if TYPE_CHECKING:
    from headwater.spark.queries.status import QueryStatus

_ARCHIVE: Final = "archive:"


def registered_reader(name: str, needed: int, lag_ms: int) -> OutsideReader:
    """Return a reader that is registered at its stream, by what it is."""
    if name.startswith(CONSUMER):
        return OutsideReader("SQL", name.removeprefix(CONSUMER), needed, lag_ms=lag_ms)
    if name.startswith(_ARCHIVE):
        return OutsideReader("archive", name.removeprefix(_ARCHIVE), needed, lag_ms=lag_ms)
    return OutsideReader("reader", name, needed, lag_ms=lag_ms)


def spark_reads(query: QueryStatus, stream: str) -> list[OutsideReader]:
    """Return where a query of Spark reads a stream."""
    name, note = query.name or query.query[:8], f"{query.state}, epoch {query.epoch:,}"
    return [
        OutsideReader("Spark", name, read.next, note, read.lag_ms, "/spark")
        for read in query.reads
        if read.stream == stream
    ]
