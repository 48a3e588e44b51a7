"""What is written to the files of an archive is read again in order, whatever its times."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import ArchiveDamaged
from headwater.log.node import SCHEMA
from headwater.spark.archives import reading
from headwater.spark.archives.manifest import Directory, File, Manifest, open_directory
from headwater.spark.archives.reading import Wanted, offset_at, scan, write_files

DAY_MS = 24 * 3600 * 1000
Row = tuple[int, str, bytes, int]


def table_of(rows: list[Row]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA)


def rows_of(batches: Any) -> list[Row]:
    found = []
    for batch in batches:
        times = batch.column("time").cast(pa.int64()).to_pylist()
        columns = [batch.column(name).to_pylist() for name in ("offset", "tag", "value")]
        found += list(zip(*columns, times, strict=True))
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return open_directory(str(tmp_path), "rides")


rows_strategy = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.sampled_from(["", "a", "b", "ü"]),
        st.binary(max_size=3),
        st.integers(0, 4 * DAY_MS),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(
    steps=rows_strategy,
    cuts=st.sets(st.integers(1, 59), max_size=4),
    span=st.tuples(st.integers(1, 100), st.integers(1, 100)),
    times=st.tuples(st.integers(0, 4 * DAY_MS), st.integers(0, 4 * DAY_MS)),
    group=st.integers(1, 20),
)
def test_any_rows_come_back_in_order_from_any_files(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[Row],
    cuts: set[int],
    span: tuple[int, int],
    times: tuple[int, int],
    group: int,
) -> None:
    directory = open_directory(str(tmp_path_factory.mktemp("a")), "rides")
    rows, offset = [], 0
    for step, tag, value, time in steps:
        offset += step
        rows.append((offset, tag, value, time))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(reading._SETTINGS, "row_group_size", group)
        files: list[File] = []
        for low, high in zip([0, *sorted(cuts)], [*sorted(cuts), len(rows)], strict=True):
            if rows[low:high]:
                files += write_files(directory, table_of(rows[low:high]))
    assert rows_of(scan(directory, files, Wanted())) == rows
    first, last = sorted(span)
    cut = [row for row in rows if first <= row[0] <= last]
    assert rows_of(scan(directory, files, Wanted(first, last))) == cut
    since, until = sorted(times)
    narrow = Wanted(first, last, since, until, frozenset({"a"}))
    found = rows_of(scan(directory, files, narrow))
    assert [row for row in cut if row[1] == "a" and since <= row[3] <= until] == [
        row for row in found if row[1] == "a" and since <= row[3] <= until
    ]
    assert found == sorted(set(found) & set(cut))
    manifest = Manifest(stream="rides", created=1).with_more(offset, files, [])
    late = [row[0] for row in rows if row[3] >= since]
    assert offset_at(directory, manifest, since) == (min(late) if late else None)


def test_a_file_is_named_after_its_day_its_offsets_and_its_bytes(directory: Directory) -> None:
    days = [0, 0, DAY_MS, 2**53 - 1]
    table = table_of([(n, "t", b"v", time) for n, time in enumerate(days, 7)])
    files = write_files(directory, table)
    assert files == write_files(directory, table)
    assert [file.path[:50] for file in files] == [
        "date=1970-01-01/0000000000000007-0000000000000008-",
        "date=1970-01-02/0000000000000009-0000000000000009-",
        "date=9999-12-31/0000000000000010-0000000000000010-",
    ]
    assert [(file.rows, file.min_time_ms, file.max_time_ms) for file in files] == [
        (2, 0, 0),
        (1, DAY_MS, DAY_MS),
        (1, 2**53 - 1, 2**53 - 1),
    ]
    assert len(directory.listing("date=1970-01-01")) == 1


def test_files_are_compressed_sorted_and_know_their_spans(directory: Directory) -> None:
    rows = [(n, f"tag-{n % 7}", b"value" * 20, 1000 + n) for n in range(1, 130_001)]
    [file] = write_files(directory, table_of(rows))
    with directory.open(file.path) as opened:
        facts = pq.ParquetFile(opened).metadata
    assert [facts.row_group(g).num_rows for g in range(facts.num_row_groups)] == [
        64_000,
        64_000,
        2_000,
    ]
    second = facts.row_group(1)
    assert {second.column(place).compression for place in range(4)} == {"ZSTD"}
    assert [column.column_index for column in second.sorting_columns] == [0]
    assert (second.column(0).statistics.min, second.column(0).statistics.max) == (64_001, 128_000)
    assert second.column(3).statistics.min == dt.datetime.fromtimestamp(65.001, dt.UTC)


def test_only_what_is_asked_for_is_read(directory: Directory) -> None:
    rows = [(n, "t", b"v" * 100, 1000 + n) for n in range(1, 130_001)]
    files = write_files(directory, table_of(rows))
    batches = list(scan(directory, files, Wanted(70_000, 70_010), ["offset"]))
    assert [batch.schema.names for batch in batches] == [["offset"]]
    assert batches[0].column("offset").to_pylist() == list(range(70_000, 70_011))
    late = list(scan(directory, files, Wanted(since_ms=129_001)))
    assert sum(batch.num_rows for batch in late) == 2_000
    assert list(scan(directory, files, Wanted(tags=frozenset({"other"})))) == []


def test_damaged_and_missing_files_are_named(directory: Directory, tmp_path: Path) -> None:
    rows = [(n, "t", b"%d" % n, n) for n in range(1, 5001)]
    [file] = write_files(directory, table_of(rows))
    path = tmp_path / "stream=rides" / file.path
    whole = path.read_bytes()
    for damaged in (whole[:-1], b"", whole[:900] + b"\x00\x01\x02\x03" + whole[904:]):
        path.write_bytes(damaged)
        with pytest.raises(ArchiveDamaged, match=file.path):
            list(scan(directory, [file], Wanted()))
    path.unlink()
    with pytest.raises(ArchiveDamaged, match="missing"):
        list(scan(directory, [file], Wanted()))
