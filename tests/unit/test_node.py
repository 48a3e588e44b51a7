"""What is packed is unpacked, and what is not a node is refused, never guessed at."""

from __future__ import annotations

import random
import struct
from zlib import crc32

import pyarrow as pa
import pytest

from headwater import HeadwaterError, InvalidInput, UnreadableNode
from headwater.kernel.headers import Headers
from headwater.log import node
from headwater.log.keys import MAX_TAG_BYTES, NODE_BYTES, NODE_MESSAGES


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
