"""Messages that carry times of their own."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headwater import Stream
from tests.support.entries import entries


def write_at(stream: Stream, times: Sequence[int]) -> None:
    """Write one message for each time, in milliseconds; see tests.support.entries."""
    for start in range(0, len(times), 700):
        part = times[start : start + 700]
        tags, values = zip(*entries(len(part), start + 1), strict=True)
        columns = [pa.array(tags), pa.array(values, pa.binary()), pa.array(part, pa.int64())]
        stream.append(pa.RecordBatch.from_arrays(columns, names=["tag", "value", "time"]))
