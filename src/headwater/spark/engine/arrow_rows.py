"""Rows that a source makes of Python objects: its columns, stated once, and batches of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

# A timestamp, as Spark takes it over without a conversion.
TIME = pa.timestamp("us", "UTC")
# So many rows make a batch.
BATCH_ROWS = 32_000


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the schema that Spark sees for columns of Arrow."""
    return from_arrow_schema(schema)


def to_batch(columns: Iterable[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of columns, each a sequence of values."""
    arrays = [pa.array(found, field.type) for found, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
