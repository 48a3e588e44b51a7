"""What is packed is unpacked, and what is not a node is refused, never guessed at."""

from __future__ import annotations

import random
import struct
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine

from headwater import HeadwaterError, InvalidInput, UnreadableNode
from headwater.kernel.headers import Headers
from headwater.log import node
from headwater.log.handles import StreamHandle
from headwater.log.keys import MAX_TAG_BYTES, NODE_BYTES, NODE_MESSAGES
from headwater.log.retention import AmongOffsets
from headwater.outbox import checkpoints
from headwater.outbox.batches import count_ids, id_at, place_of, read_runs, runs_of, spell_runs
from headwater.outbox.plan import Ask, ConsumerPlan, Execute, Fetch, Transact, Work
from headwater.outbox.position import ConsumerPosition


def contents() -> dict[str, pa.RecordBatch]:
    """Return batches of every schema, by name."""
    tags = [f"ride-{i % 50}" for i in range(1000)]
    values = [b'{"ride": %d, "fare": %d}' % (i, i * 37 % 5000) for i in range(1000)]
    times = [1_700_000_000_000 + i * 13 % 1009 for i in range(1000)]
    offsets = [5_000_000_000 + i * 3 for i in range(1000)]
    odd = ["", "ünï-標籤-🌊", "a\0b\n"]
    named = [Headers({"content-type": b"json", "n": f"{i}"}).encoded for i in range(1000)]
    some = [headers if i % 3 else b"" for i, headers in enumerate(named)]
    return {
        "dense": node.batch_of(tags, values),
        "times": node.batch_of(tags, values, times),
        "holes": node.batch_of(tags, values, times, offsets),
        "holes-without-times": node.batch_of(tags, values, None, offsets),
        "small": node.batch_of(odd, [b"", bytes(range(256)), b"\xff\xfe"]),
        "small-holes": node.batch_of(["a", "b"], [b"1", b""], [5, 4], [7, 9]),
        "headers": node.batch_of(tags, values, headers=some),
        "headers-holes": node.batch_of(tags, values, times, offsets, some),
        "small-headers": node.batch_of(odd, [b"", b"1", b"2"], headers=[b"", some[1], b""]),
    }


def blob_of(name: str) -> bytes:
    return node.pack(contents()[name], sealed=True).blob


@pytest.mark.parametrize("manner", [{}, {"hot": True}, {"sealed": True}], ids=str)
@pytest.mark.parametrize("name", contents())
def test_what_is_packed_is_unpacked(name: str, manner: dict[str, bool]) -> None:
    batch = contents()[name]
    packed = node.pack(batch, **manner)
    assert packed.rows == batch.num_rows
    assert node.unpack(packed.blob).equals(batch)
    if "time" in batch.schema.names:
        times = batch.column("time").to_pylist()
        assert (packed.first_time, packed.newest_time) == (times[0], max(times))
    else:
        assert (packed.first_time, packed.newest_time) == (None, None)


def test_a_node_has_a_column_of_headers_only_when_a_message_has_some() -> None:
    for name in ("headers", "headers-holes", "small-headers"):
        without = contents()[name].slice(0, 1)
        assert node.unpack(node.pack(without).blob).equals(without.drop_columns("headers"))


def resealed(blob: bytes, **changes: int) -> bytes:
    """Change facts in a node's header, with a checksum that fits."""
    names = ["version", "columns", "rows", "size"]
    facts = dict(zip(names, struct.unpack_from("<BBII", blob, 2), strict=True)) | changes
    head = b"HW" + struct.pack("<BBII", *facts.values())
    return head + struct.pack("<I", crc32(blob[16:], crc32(head))) + blob[16:]


@pytest.mark.parametrize("version", [0, node.VERSION + 1, 255])
def test_an_unknown_version_is_refused_with_the_cure(version: int) -> None:
    blob = blob_of("dense")
    with pytest.raises(UnreadableNode, match=f"format version {version},.*upgrade the headwater"):
        node.unpack(resealed(blob, version=version))


def test_a_header_that_does_not_fit_is_refused() -> None:
    blob = blob_of("times")
    assert node.unpack(resealed(blob)).num_rows == 1000
    for changes in ({"columns": 255}, {"columns": 8}, {"rows": 999}, {"size": 7}):
        with pytest.raises(UnreadableNode):
            node.unpack(resealed(blob, **changes))


@pytest.mark.parametrize("name", ["small", "dense", "small-headers"])
def test_any_byte_that_changed_is_noticed(name: str) -> None:
    blob = blob_of(name)
    draw = random.Random(1)
    places = range(len(blob)) if len(blob) < 2000 else draw.sample(range(len(blob)), 2000)
    for place in places:
        damaged = bytearray(blob)
        damaged[place] ^= 1 << draw.randrange(8)
        with pytest.raises(UnreadableNode):
            node.unpack(bytes(damaged))


@pytest.mark.parametrize("name", ["small", "dense"])
def test_bytes_that_are_missing_or_too_many_are_noticed(name: str) -> None:
    blob = blob_of(name)
    for length in {0, 1, 2, 3, 15, 16, 17, len(blob) // 2, len(blob) - 1}:
        with pytest.raises(UnreadableNode):
            node.unpack(blob[:length])
    with pytest.raises(UnreadableNode):
        node.unpack(blob + b"\0")


def test_other_bytes_are_no_node() -> None:
    for blob in (b"", b"H", b"Hello, world, I am no node", b"PAR1" * 9, bytes(64)):
        with pytest.raises(UnreadableNode) as caught:
            node.unpack(blob)
        assert isinstance(caught.value, HeadwaterError)


@pytest.mark.parametrize(
    ("rows", "size"), [(1, 10), (1000, 10), (1001, 10), (3500, 900), (7, 10**6)]
)
def test_a_batch_is_split_into_parts_of_the_size_of_a_node(rows: int, size: int) -> None:
    batch = node.batch_of([f"t{i}" for i in range(rows)], [bytes(size)] * rows)
    parts = list(node.split(batch))
    assert pa.Table.from_batches(parts).combine_chunks().to_batches()[0].equals(batch)
    for part in parts:
        assert part.num_rows <= NODE_MESSAGES
        assert part.num_rows == 1 or part.nbytes <= NODE_BYTES + 20 * part.num_rows


def test_a_tag_that_is_too_long_is_found_wherever_it_is() -> None:
    chance = random.Random(11)
    refused = 0
    for _ in range(300):
        rows = chance.randint(1, 400)
        usual = chance.choice((0, 5, 300, 3000))
        tags = ["t" * chance.randint(0, usual) for _ in range(rows)]
        tags[chance.randrange(rows)] = "t" * (MAX_TAG_BYTES + chance.choice((0, 1)))
        begin = chance.randrange(rows)
        batch = node.batch_of(tags, [b""] * rows).slice(begin)
        if max(map(len, tags[begin:])) <= MAX_TAG_BYTES:
            node.check_batch(batch)
            continue
        refused += 1
        with pytest.raises(InvalidInput, match="a tag may have 4096 bytes, not 4097"):
            node.check_batch(batch)
    assert 30 < refused < 270


OFFSETS = st.sets(st.integers(1, 60), max_size=40)


@given(OFFSETS, OFFSETS)
def test_rows_of_a_node_stay_by_their_offsets(node: set[int], stay: set[int]) -> None:
    column = pa.array(sorted(node), pa.int64())
    batch = pa.RecordBatch.from_arrays([column], names=["offset"])
    kept = AmongOffsets(iter(stay))(batch)
    assert [
        offset for offset, here in zip(sorted(node), kept.to_pylist(), strict=True) if here
    ] == [offset for offset in sorted(node) if offset in stay]


# What a position looks at in the info of a stream.
INFO = SimpleNamespace(first=1, last=20)


def drive(work: Work[Any], stored: list[int | None]) -> tuple[Any, list[Any]]:
    """Run work against a stream that ends at 20; returns its result, and what the log was sent."""
    told: list[Any] = []
    reply: Any = None
    try:
        while True:
            request = work.send(reply)
            if isinstance(request, Transact):
                reply = transact(request.work, stored)
            elif isinstance(request, Ask):
                call: Any = request.operation.send(None)
                request.operation.close()
                reply = INFO if call.function == "hw_stream_info" else None
                if call.function == "hw_stream_reader":
                    told.append(call.args[1])
            else:
                reply = None
    except StopIteration as done:
        return done.value, told


def transact(work: Work[Any], stored: list[int | None]) -> Any:
    """Run work in a database that has the positions that are given, and nothing else."""
    reply: Any = None
    try:
        while True:
            request = work.send(reply)
            loads = isinstance(request, Fetch) and request.statement is checkpoints.LOAD
            reply = stored.pop(0) if loads else None
    except StopIteration as done:
        return done.value


def position(start: Any) -> ConsumerPosition:
    plan = ConsumerPlan("c", create_engine("sqlite://"), 10, start, "stop", 1, 0, "stop", False)
    return ConsumerPosition(plan, StreamHandle("s", {"s"}))


def test_a_new_consumer_holds_everything_until_it_knows_where_the_first_message_is() -> None:
    assert drive(position("first").look_up(), [None, 1]) == (1, [1])
    assert drive(position("last").look_up(), [None, 21]) == (21, [21])


def test_the_second_to_begin_reports_where_the_first_began() -> None:
    """It had told a later position: retention must not pass what the first still needs."""
    assert drive(position("last").look_up(), [None, 11]) == (11, [21, 11])


def test_a_position_that_somebody_moved_back_is_reported() -> None:
    place = position("first")
    assert drive(place.look_up(), [15]) == (15, [15])
    place.next = None
    assert drive(place.look_up(), [15]) == (15, [])
    place.next = None
    assert drive(place.look_up(), [4]) == (4, [4])


def test_a_position_is_reported_once() -> None:
    place = position("first")
    drive(place.look_up(), [15])
    place.next = 30
    assert drive(place.report(), [])[1] == [30]
    assert drive(place.report(), [])[1] == []
    place.next = 31
    assert drive(place.report(60.0), [])[1] == [], "not so soon again"


class Frozen:
    """A time source that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


def test_time_comes_from_the_source_that_was_given() -> None:
    frozen = Frozen()
    plan = ConsumerPlan(
        *("c", create_engine("sqlite://"), 10, "first", "stop", 1, 0, "stop", False, frozen)
    )
    place = ConsumerPosition(plan, StreamHandle("s", {"s"}))
    moved = place.move(1, 5).send(None)
    assert isinstance(moved, Execute)
    assert moved.values["now_ms"] == 1_000_000_000
    assert drive(place.look_up(), [15]) == (15, [15])
    place.doubt(2.0)
    assert place.next == 15
    frozen.now += 2
    place.doubt(2.0)
    assert place.next is None


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([], ""),
        ([7], "7"),
        ([7, 8], "7-8"),
        ([1, 2, 3, 5, 9, 10], "1-3,5,9-10"),
        ([2**63 - 2, 2**63 - 1], "9223372036854775806-9223372036854775807"),
    ],
)
def test_neighbours_are_spelled_as_a_run(ids: list[int], text: str) -> None:
    runs = runs_of(ids)
    assert spell_runs(runs) == text
    assert read_runs(text) == runs
    assert count_ids(runs) == len(ids)


@given(st.sets(st.integers(1, 300)).map(sorted))
def test_every_id_is_named_and_no_other(ids: list[int]) -> None:
    runs = read_runs(spell_runs(runs_of(ids)))
    assert [one for first, last in runs for one in range(first, last + 1)] == ids


def test_a_full_batch_of_neighbours_is_short() -> None:
    assert len(spell_runs(runs_of(range(10**15, 10**15 + 10_000)))) < 40


def test_an_id_and_its_place_lead_to_each_other() -> None:
    runs = [(3, 5), (9, 9), (12, 13)]
    ids = [3, 4, 5, 9, 12, 13]
    assert [id_at(runs, place) for place in range(7)] == [*ids, None]
    assert [place_of(runs, one) for one in ids] == list(range(6))
    assert place_of(runs, 6) is None
    assert id_at(runs, -1) is None
