"""What wakes a blocked reader: entries that arrive in the tail of its stream."""

from __future__ import annotations

from typing import Any

from headwater.log import counts
from headwater.log.handles import StreamHandle
from headwater.log.keys import tail_key
from headwater.log.runs import is_elsewhere, is_partial, open_entries
from headwater.log.types import Message
from headwater.store.call import Clock, Operation, Wait

# A blocked call returns this often, so that a dead connection is noticed.
WAIT_SLICE_MS = 5000


def arrivals(
    stream: StreamHandle, offset: int, count: int, deadline: float
) -> Operation[list[Any]]:
    """Wait until the tail holds an entry at or after an offset; returns [] when time is up."""
    tail = tail_key(stream.key)
    most = min(count, 1000)
    while True:
        left = deadline - (yield Clock())
        if left <= 0:
            return []
        slice_ms = max(1, int(min(left, WAIT_SLICE_MS)))
        command = ("XREAD", "COUNT", most, "BLOCK", slice_ms, "STREAMS", tail, f"0-{offset - 1}")
        if reply := (yield Wait(tail, command, slice_ms, messages=counts.arrived)):
            entries: list[Any] = reply[0][1]
            return entries


def woken_messages(
    stream: StreamHandle, entries: list[Any], offset: int, count: int
) -> list[Message | None]:
    """Return what woke a blocked reader, if it begins with the very offset it waits for."""
    if any(is_elsewhere(fields) for _, fields in entries) or is_partial(entries[-1][1]):
        return []
    runs = open_entries(entries, stream.name)
    if not runs or runs[0].base > offset:
        return []
    rows = [m for run in runs for m in run.cut(offset, offset + count - 1).messages()]
    dense = [m.offset for m in rows] == list(range(offset, offset + len(rows)))
    if not dense:
        return []
    if rows:
        stream.seen = stream.seen._replace(woken=max(stream.seen.woken, rows[-1].offset))
    return list(rows)
