"""Compaction knows what stays, whatever lies between the offsets of a node."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headwater.log.retention import AmongOffsets

OFFSETS = st.sets(st.integers(1, 60), max_size=40)


@given(OFFSETS, OFFSETS)
def test_rows_of_a_node_stay_by_their_offsets(node: set[int], stay: set[int]) -> None:
    column = pa.array(sorted(node), pa.int64())
    batch = pa.RecordBatch.from_arrays([column], names=["offset"])
    kept = AmongOffsets(iter(stay))(batch)
    assert [
        offset for offset, here in zip(sorted(node), kept.to_pylist(), strict=True) if here
    ] == [offset for offset in sorted(node) if offset in stay]
