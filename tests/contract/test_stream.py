"""What a stream promises: dense offsets, positional reads, every byte back, scan equal to read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headwater import Headwater, InvalidInput, Message, Stream
from tests.support.entries import entries, offsets, pairs
from tests.support.watch import server_ms

ODD = [
    ("", b""),
    ("", b"no tag"),
    ("no value", b""),
    ("bytes", bytes(range(256))),
    ("not utf-8", b"\xff\xfe\x80"),
    ("lines", b"a\r\nb\n\nc\0d"),
    ("tag\nwith\0control", b"x"),
    ("ünïcödé-標籤-🌊", "värde-価値".encode()),
    ("spaces and {braces}", b"HW\x01"),
    ("t" * 4096, b"v" * 70_000),
]
WAYS: dict[str, Callable[[Stream, list[tuple[str, bytes]]], Any]] = {
    "one by one": lambda s, rows: [s.write(tag, value) for tag, value in rows],
    "few at a time": lambda s, rows: [
        s.write_many(rows[i : i + 3]) for i in range(0, len(rows), 3)
    ],
    "packed": lambda s, rows: s.write_many(rows),
    "arrow": lambda s, rows: s.append(
        pa.table({"tag": [t for t, _ in rows], "value": [v for _, v in rows]})
    ),
}


def scanned(stream: Stream, start: int | None = None, stop: int | None = None) -> list[Message]:
    return [
        Message(row["offset"], row["tag"], row["value"], round(row["time"].timestamp() * 1000))
        for batch in stream.scan(start, stop)
        for row in batch.to_pylist()
    ]


def test_offsets_count_from_one_without_holes(stream: Stream) -> None:
    assert [stream.write("tag", b"value") for _ in range(3)] == [1, 2, 3]
    assert stream.write_many(entries(5)) == range(4, 9)
    assert stream.write_many(entries(20)) == range(9, 29)
    assert stream.append(pa.table({"tag": ["a"], "value": [b"1"]})) == range(29, 30)
    assert stream.write("tag", b"value") == 30
    assert offsets(stream.read(1, 100)) == list(range(1, 31))


def test_a_stream_that_was_never_written_reads_as_empty(stream: Stream) -> None:
    assert stream.read(1, 10) == []
    assert stream.read(77, 10) == []
    assert list(stream.scan()) == []
    assert stream.offset_at(0) == 1
    info = stream.info()
    assert (info.first, info.last, info.length, info.bytes) == (1, 0, 0, 0)
    assert not info.exists
    assert (stream.evict(5), stream.compact(), stream.seal(), stream.delete()) == (0, 0, 0, False)


def test_writing_nothing_changes_nothing(stream: Stream) -> None:
    assert stream.write_many([]) == range(0)
    assert stream.append(pa.table({"tag": [], "value": []})) == range(0)
    assert not stream.info().exists


@pytest.mark.parametrize("sealed", [False, True], ids=["unsealed", "sealed"])
@pytest.mark.parametrize("way", WAYS)
def test_every_byte_comes_back(stream: Stream, way: str, sealed: bool) -> None:
    WAYS[way](stream, ODD)
    if sealed:
        assert stream.seal() == len(ODD)
    assert pairs(stream.read(1, 100)) == ODD
    assert pairs(scanned(stream)) == ODD
    assert pairs(stream.group("g").read(100)) == ODD


def test_a_str_value_is_stored_as_utf8(stream: Stream) -> None:
    stream.write("a", "naïve")
    stream.write_many([("b", "naïve"), ("c", b"bytes")])
    assert [m.value for m in stream.read(1, 3) if m] == ["naïve".encode()] * 2 + [b"bytes"]


def test_any_bytes_like_value_is_taken(stream: Stream) -> None:
    stream.write("a", bytearray(b"one"))  # type: ignore[arg-type]
    stream.write("a", memoryview(b"two"))  # type: ignore[arg-type]
    stream.write_many(entry for entry in [("a", b"three")])
    assert [m.value for m in stream.read(1, 3) if m] == [b"one", b"two", b"three"]


@pytest.mark.parametrize("size", [1, 8, 9, 499, 500, 501, 1000, 1001, 2500])
def test_a_batch_of_any_size_is_at_neighbouring_offsets(stream: Stream, size: int) -> None:
    before, batch, after = entries(3), entries(size, 4), entries(2, size + 4)
    assert stream.write_many(before) == range(1, 4)
    assert stream.write_many(batch) == range(4, size + 4)
    assert stream.write_many(after) == range(size + 4, size + 6)
    assert pairs(stream.read(1, 5000)) == before + batch + after
    assert pairs(scanned(stream)) == before + batch + after
    assert stream.info().length == size + 5


def test_large_values_are_cut_into_nodes_and_come_back_whole(stream: Stream) -> None:
    rows = [(f"big-{i}", bytes([i]) * 700_000) for i in range(12)]
    stream.write_many(rows)
    assert pairs(stream.read(1, 12)) == rows
    assert pairs(stream.read(5, 3)) == rows[4:7]
    assert pairs(scanned(stream)) == rows


def test_a_read_has_one_place_per_offset(stream: Stream) -> None:
    rows = entries(30)
    stream.write_many(rows)
    stream.evict(10)
    assert pairs(stream.read(8, 5)) == [None, None, None, *rows[10:12]]
    assert pairs(stream.read(1, 4)) == [None] * 4
    assert pairs(stream.read(1, 100)) == [None] * 10 + rows[10:]


def test_a_read_is_shorter_at_the_end_and_empty_beyond_it(stream: Stream) -> None:
    stream.write_many(entries(5))
    assert offsets(stream.read(4, 10)) == [4, 5]
    assert stream.read(6, 10) == []
    assert stream.read(2**53 - 1, 10) == []


def test_a_count_of_zero_reads_nothing_and_does_not_wait(stream: Stream) -> None:
    stream.write_many(entries(5))
    assert stream.read(1, 0) == []
    assert stream.read(1, 0, block_ms=60_000) == []
    assert stream.read(9, 0, block_ms=60_000) == []


def test_offsets_can_be_reached_by_arithmetic(stream: Stream) -> None:
    for first in range(1, 3001, 300):
        stream.write_many(entries(300, first))
    last = stream.info().last
    for back in (0, 10, 999, 1000, 1001, 2999):
        (message,) = stream.read(last - back, 1)
        assert message is not None
        assert (message.offset, message.value) == (last - back, b"value-%d" % (last - back))


def test_messages_carry_the_time_of_the_server(client: Headwater, stream: Stream) -> None:
    before = server_ms(client)
    stream.write("a", b"1")
    stream.write_many(entries(3))
    stream.write_many(entries(20))
    stream.write_many(entries(600))
    times = [m.time_ms for m in stream.read(1, 1000) if m]
    assert before <= times[0]
    assert times == sorted(times)
    assert times[-1] <= server_ms(client)
    assert stream.info().last_time_ms == times[-1]


def test_scan_gives_what_read_gives(stream: Stream) -> None:
    for size in (1, 5, 40, 600, 8, 1100, 3):
        stream.write_many(entries(size))
    for sealed in (False, True):
        if sealed:
            stream.seal()
        assert scanned(stream) == stream.read(1, 5000)
        assert scanned(stream, 40, 700) == stream.read(40, 660)
        assert scanned(stream, 1700) == stream.read(1700, 5000)
        assert scanned(stream, 1, 1) == []
        assert scanned(stream, 9000) == []


def test_scan_gives_arrow_columns_of_one_schema(stream: Stream) -> None:
    stream.write("a", b"1")
    stream.write_many(entries(50))
    stream.write_many(entries(600))
    table = pa.Table.from_batches(list(stream.scan()))
    assert [(field.name, str(field.type)) for field in table.schema] == [
        ("offset", "int64"),
        ("tag", "string"),
        ("value", "binary"),
        ("time", "timestamp[ms, tz=UTC]"),
    ]
    assert table.column("offset").to_pylist() == list(range(1, 652))


def test_scan_leaves_out_what_is_gone(stream: Stream) -> None:
    stream.write_many(entries(30, tags=5))
    stream.evict(3)
    stream.compact()
    assert offsets(scanned(stream)) == [26, 27, 28, 29, 30]
    assert offsets(scanned(stream, 1, 28)) == [26, 27]


def arrow_shapes() -> dict[str, Any]:
    plain = {"tag": ["a", "b", "c"], "value": [b"1", b"2", b"3"]}
    table = pa.table(plain)
    large = pa.schema([("tag", pa.large_string()), ("value", pa.large_binary())])
    times = [1_700_000_000_000, 1_700_000_000_001, 1_700_000_000_002]
    stamp = {
        unit: pa.array([t * 1000**shift // 1000**over for t in times], pa.timestamp(unit, zone))
        for unit, shift, over, zone in (
            ("ms", 0, 0, "UTC"),
            ("us", 1, 0, None),
            ("ns", 2, 0, "Europe/Berlin"),
        )
    }
    return {
        "table": table,
        "record batch": table.to_batches()[0],
        "chunked table": pa.concat_tables([table.slice(0, 1), table.slice(1, 2)]),
        "slice": pa.concat_tables([table, table]).combine_chunks().slice(3, 3),
        "large types": table.cast(large),
        "dictionary": table.set_column(0, "tag", table.column("tag").dictionary_encode()),
        "columns in another order": table.select(["value", "tag"]),
        "value as string": pa.table({"tag": ["a", "b", "c"], "value": ["1", "2", "3"]}),
        "time as int64": pa.table({**plain, "time": times}),
        **{f"time as {unit}": pa.table({**plain, "time": array}) for unit, array in stamp.items()},
    }


@pytest.mark.parametrize("shape", arrow_shapes())
def test_append_takes_arrow_data_of_many_types(stream: Stream, shape: str) -> None:
    assert stream.append(arrow_shapes()[shape]) == range(1, 4)
    messages = [m for m in stream.read(1, 9) if m]
    assert pairs(messages) == [("a", b"1"), ("b", b"2"), ("c", b"3")]
    if "time" in shape:
        assert [m.time_ms - 1_700_000_000_000 for m in messages] == [0, 1, 2]
    assert scanned(stream) == messages


def test_append_takes_a_table_of_many_chunks(stream: Stream) -> None:
    rows = entries(3000)
    tables = [
        pa.table(
            {"tag": [t for t, _ in rows[i : i + 77]], "value": [v for _, v in rows[i : i + 77]]}
        )
        for i in range(0, 3000, 77)
    ]
    assert stream.append(pa.concat_tables(tables)) == range(1, 3001)
    assert pairs(stream.read(1, 3000)) == rows


# Arrow takes it for text without a look at its bytes.
NO_TEXT = pa.array([b"\xff"], pa.binary()).view(pa.string())
NO_NAME = pa.MapArray.from_arrays([0, 1], NO_TEXT, [b""])


@pytest.mark.parametrize(
    "data",
    [
        pa.table({"tag": ["a"]}),
        pa.table({"value": [b"a"]}),
        pa.table({"tag": ["a"], "value": [b"1"], "more": [1]}),
        pa.table({"tag": ["a"], "value": [1]}),
        pa.table([["a"], [b"1"], [b"2"]], ["tag", "value", "value"]),
        pa.table({"tag": ["a", None], "value": [b"1", b"2"]}),
        pa.table({"tag": ["a", "b"], "value": [b"1", None]}),
        pa.table({"tag": ["a", "b"], "value": [b"1", b"2"], "time": [1, None]}),
        pa.table({"tag": ["a"], "value": [b"1"], "time": [-1]}),
        pa.table({"tag": ["a"], "value": [b"1"], "time": [2**60]}),
        pa.table({"tag": ["a"], "value": [b"1"], "time": ["yesterday"]}),
        pa.table({"tag": NO_TEXT, "value": [b"1"]}),
        pa.table({"tag": pa.concat_arrays([NO_TEXT] * 2000), "value": [b"1"] * 2000}),
        pa.table(
            {
                "tag": ["a"],
                "value": [b"1"],
                "headers": pa.MapArray.from_arrays([0, 1], NO_TEXT, [b""]),
            }
        ),
        {"tag": ["a"], "value": [b"1"]},
        None,
    ],
    ids=lambda data: str(getattr(data, "schema", data)).replace("\n", ", "),
)
def test_append_refuses_data_that_is_not_messages(stream: Stream, data: Any) -> None:
    with pytest.raises(InvalidInput):
        stream.append(data)
    assert not stream.info().exists
