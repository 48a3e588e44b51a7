"""A batch read gives what the log holds, once, in the columns asked for."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrameReader

from headwater import Stream
from tests.entries import entries


def test_a_stream_is_read_whole(
    source: Callable[..., DataFrameReader], make_stream: Callable[..., Stream]
) -> None:
    stream = make_stream(2500)
    rows = source(stream=stream.name).load().orderBy("offset").collect()
    assert [(row.offset, row.tag, bytes(row.value)) for row in rows] == [
        (offset, tag, value) for offset, (tag, value) in enumerate(entries(2500), 1)
    ]
    assert {(row.stream, row.partition) for row in rows} == {(stream.name, 0)}
