"""Rows of a write that come as nodes: tasks packed them in the JVM (``jvm/NodePacker.java``).

Sessions that have our Java send nodes in place of rows, where the columns allow it
(``jvm/NodeColumns.java``). A write of that kind is planned with one more column, which carries the
mark of our scans. What its tasks get is a node in each row, with the first and the newest of its
times and the sum of the checksums of its messages (see ``engine/contents.py``); or a row as it
came, when the log does not take it. Such a row is checked as every other one, so that its error is
the same in all sessions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.types import StructType

from headwater.errors import HeadwaterError
from headwater.log import node
from headwater.log.handles import StreamHandle
from headwater.log.writing import stage_nodes
from headwater.spark.engine.contents import Content
from headwater.spark.engine.own_scans import is_own_scan
from headwater.spark.log.columns import NODE
from headwater.spark.log.staging import LogSink, StagedRows, stage_rows, unstage_rows

_FIRST, _NEWEST, _SUM = "__first", "__newest", "__sum"
_OF_NODES = (NODE.name, _FIRST, _NEWEST, _SUM)


def comes_packed(schema: StructType) -> bool:
    """Return whether the tasks of a write will get nodes."""
    return is_own_scan(schema) and schema.names[-1] == NODE.name


def as_given(schema: StructType) -> StructType:
    """Return the columns of a write as its query has them."""
    return StructType(schema.fields[:-1]) if comes_packed(schema) else schema


def stage_packed(
    sink: LogSink, batches: Iterable[pa.RecordBatch], staging: str, query: str | None = None
) -> StagedRows:
    """Stage the nodes of a task; what it has staged is dropped when it fails."""
    stream = StreamHandle(sink.stream_of(0), set())
    place, content = 0, Content()
    try:
        for batch in batches:
            nodes = list(_nodes(sink, batch, staging))
            place = sink.target.hw.store.run(stage_nodes(stream, nodes, staging, place))
            rows, sums = sum(one.rows for one in nodes), batch.column(_SUM).to_pylist()
            content = content.joined(Content(rows, sum(sums)))
    except BaseException:
        with contextlib.suppress(HeadwaterError):
            unstage_rows(sink, [StagedRows(query, content, staging, (0,))])
        raise
    return StagedRows(query, content, staging, (0,) if content.rows else ())


def _nodes(sink: LogSink, batch: pa.RecordBatch, staging: str) -> Iterator[node.PackedNode]:
    blobs, firsts, newests, _ = (batch.column(name).to_pylist() for name in _OF_NODES)
    for row, (blob, first, newest) in enumerate(zip(blobs, firsts, newests, strict=True)):
        if blob is None:
            _refuse(sink, batch.slice(row, 1), staging)
        _, rows, size = node.check(blob)
        yield node.PackedNode(rows, first, newest, size, blob)


def _refuse(sink: LogSink, row: pa.RecordBatch, staging: str) -> None:
    """Raise what is wrong with a row that the JVM did not pack, as a write of it would."""
    stage_rows(sink, [row.drop_columns(list(_OF_NODES))], staging)
    raise AssertionError("the JVM refused a row that the log takes")
