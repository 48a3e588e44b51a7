"""Rows of a DataFrame as messages of the log: their tags and values, and the partition of each."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import InvalidInput
from headwater.log import topics


def messages_by_partition(
    batch: pa.RecordBatch, partitions: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the messages of each partition, in the order of their rows; 0 partitions: a stream."""
    messages = _messages(batch)
    if not partitions:
        yield 0, messages
        return
    places = _partitions(batch, messages.column("tag"), partitions)
    yield from topics.spread(messages, places).items()


def _messages(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return tag, value, time and headers as a stream takes them, without a loop over rows."""
    value = batch.column("value")
    if value.null_count:
        raise InvalidInput(
            "a row has a value that is null; the log takes none: drop such rows by "
            ".where('value IS NOT NULL'), or give an empty value"
        )
    if "tag" in batch.schema.names:
        tag = batch.column("tag")
        if tag.null_count:
            raise InvalidInput(
                "a row has a tag that is null; use .withColumn('tag', coalesce('tag', lit('')))"
            )
    else:
        tag = pa.repeat(pa.scalar("", pa.string()), batch.num_rows)
    columns = {"tag": tag.cast(pa.string()), "value": value.cast(pa.binary())}
    columns |= {
        name: batch.column(name) for name in ("time", "headers") if name in batch.schema.names
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _partitions(batch: pa.RecordBatch, tags: pa.Array, partitions: int) -> pa.Array:
    """Return the partition of each row: that of the column, else that of its tag."""
    if "partition" not in batch.schema.names:
        return topics.places_of(tags, partitions)
    given = batch.column("partition")
    least, most = pc.min_max(given).as_py().values()
    if least is not None and (least < 0 or most >= partitions):
        raise InvalidInput(
            f"a row has partition {least if least < 0 else most}, and the topic has {partitions}, "
            "counted from 0; correct the column, or drop it to place rows by their tags"
        )
    given = given.cast(pa.int32())
    return pc.coalesce(given, topics.places_of(tags, partitions)) if given.null_count else given
