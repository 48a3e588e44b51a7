"""Rows to stage, and what staging and publishing leave behind."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from headwater import Headwater, Stream
from tests.support.entries import pairs

Rows = Iterable[tuple[str, bytes]]


def table(rows: Rows) -> pa.Table:
    """Return rows as Arrow."""
    tags, values = zip(*rows, strict=True) if rows else ((), ())
    return pa.table({"tag": pa.array(tags, pa.string()), "value": pa.array(values, pa.binary())})


def all_of(stream: Stream) -> list[tuple[str, bytes] | None]:
    """Return all rows of a stream."""
    return pairs(stream.read(1, 100_000))


def left_behind(client: Headwater, name: str) -> set[str]:
    """Return the keys of a stream that staging and publishing have made and not removed."""
    parts = (f"{{{name}}}:staged:", f"{{{name}}}:publish")
    found = set()
    for page in client.store.command("KEYS", "*"):
        found |= {key.decode() for key in page if any(part in key.decode() for part in parts)}
    return found
