"""A producer may repeat a write as often as it likes: it happens once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headwater import Headwater, InvalidInput, ReusedSequence, StaleSequence, Stream
from tests.support.entries import entries, pairs

REMEMBERED = 128


@pytest.mark.parametrize("size", [1, 5, 40, 600, 2500])
def test_a_repeat_changes_nothing_and_has_the_first_answer(stream: Stream, size: int) -> None:
    stream.write_many(entries(3))
    first = stream.write_many(entries(size), producer="p", sequence=1)
    assert first == range(4, 4 + size)
    stream.write_many(entries(2))
    assert stream.write_many(entries(size), producer="p", sequence=1) == first
    assert stream.info().last == size + 5
    assert pairs(stream.read(4, size)) == entries(size)


def test_sequences_may_skip_but_not_fall(stream: Stream) -> None:
    assert stream.write_many(entries(1), producer="p", sequence=0) == range(1, 2)
    assert stream.write_many(entries(1), producer="p", sequence=7) == range(2, 3)
    assert stream.write_many(entries(1), producer="p", sequence=2**53 - 1) == range(3, 4)
    with pytest.raises(StaleSequence) as caught:
        stream.write_many(entries(1), producer="p", sequence=5)
    assert (caught.value.producer, caught.value.sequence, caught.value.newest) == (
        "p",
        5,
        2**53 - 1,
    )
    assert stream.info().last == 3


def test_the_last_128_sequences_are_remembered(stream: Stream) -> None:
    for sequence in range(1, 301):
        stream.write_many(entries(2), producer="p", sequence=sequence)
    for sequence in range(301 - REMEMBERED, 301):
        again = stream.write_many(entries(2), producer="p", sequence=sequence)
        assert again == range(2 * sequence - 1, 2 * sequence + 1)
    for sequence in (1, 100, 300 - REMEMBERED):
        with pytest.raises(StaleSequence):
            stream.write_many(entries(2), producer="p", sequence=sequence)
    assert stream.info().last == 600


def test_producers_do_not_disturb_each_other(stream: Stream) -> None:
    names = ["p", "p2", "ünï", "p:1", "p.1"]
    for sequence in (1, 2):
        for place, name in enumerate(names):
            at = stream.write_many(entries(1), producer=name, sequence=sequence)
            assert at.start == (sequence - 1) * len(names) + place + 1
    for place, name in enumerate(names):
        assert stream.write_many(entries(1), producer=name, sequence=1).start == place + 1


def test_a_repeat_is_known_to_every_client(client: Headwater, stream: Stream, name: str) -> None:
    first = stream.write_many(entries(3), producer="p", sequence=1)
    assert client.stream(name).write_many(entries(3), producer="p", sequence=1) == first


def test_a_repeat_is_known_after_sealing_compaction_and_eviction(stream: Stream) -> None:
    first = stream.write_many(entries(30), producer="p", sequence=1)
    stream.seal()
    assert stream.write_many(entries(30), producer="p", sequence=1) == first
    stream.compact()
    assert stream.write_many(entries(30), producer="p", sequence=1) == first
    stream.evict(30)
    assert stream.write_many(entries(30), producer="p", sequence=1) == first
    assert stream.info().last == 30


def test_a_repeat_evicts_nothing(stream: Stream) -> None:
    stream.write_many(entries(30), producer="p", sequence=1)
    assert stream.write_many(entries(30), producer="p", sequence=1, backlog=1) == range(1, 31)
    assert stream.info().first == 1


def test_producer_and_sequence_go_together(stream: Stream) -> None:
    with pytest.raises(InvalidInput, match="together"):
        stream.write_many(entries(1), producer="p")
    with pytest.raises(InvalidInput, match="together"):
        stream.write_many(entries(1), sequence=1)


def test_a_producer_that_starts_again_is_told_where_it_stands(stream: Stream) -> None:
    assert stream.newest_sequence("p") is None
    stream.write_many(entries(1), producer="p", sequence=0)
    assert stream.newest_sequence("p") == 0
    stream.write_many(entries(1), producer="p", sequence=2**53 - 1)
    assert stream.newest_sequence("p") == 2**53 - 1
    assert stream.newest_sequence("q") is None
    with pytest.raises(InvalidInput):
        stream.newest_sequence("")


def test_a_sequence_with_other_content_is_refused_and_writes_nothing(stream: Stream) -> None:
    first = stream.write_many(entries(5), producer="p", sequence=1)
    for other in (entries(4), entries(5, 2), [*entries(4), ("tag-5", b"value-6")], entries(600)):
        with pytest.raises(ReusedSequence) as caught:
            stream.write_many(other, producer="p", sequence=1)
        found = caught.value
        assert (found.stream, found.producer, found.sequence) == (stream.name, "p", 1)
        assert (found.first, found.last) == (first[0], first[-1])
    assert stream.write_many(entries(5), producer="p", sequence=1) == first
    assert stream.info().last == 5


def test_a_repeat_is_recognised_however_it_is_cut_and_packed(stream: Stream) -> None:
    tags, values = zip(*entries(3000), strict=True)
    rows = pa.table({"tag": tags, "value": values})
    offsets = stream.append(rows, producer="p", sequence=1)
    chunks = pa.concat_tables([rows.slice(0, 7), rows.slice(7, 1200), rows.slice(1207)])
    assert stream.append(chunks, producer="p", sequence=1) == offsets
    assert stream.write_many(entries(3000), producer="p", sequence=1) == offsets


def test_a_boundary_between_messages_is_content(stream: Stream) -> None:
    stream.write_many([("a", b"bc"), ("d", b"")], producer="p", sequence=1)
    for other in (
        [("ab", b"c"), ("d", b"")],
        [("a", b"b"), ("d", b"c")],
        [("a", b"bc"), ("", b"d")],
    ):
        with pytest.raises(ReusedSequence):
            stream.write_many(other, producer="p", sequence=1)


def test_one_write_may_be_repeated_as_a_batch_may(client: Headwater, name: str) -> None:
    stream, topic = client.stream(name), client.topic(f"{name}.t", partitions=2)
    headers = {"trace": b"1"}
    for _ in range(2):
        assert stream.write("t", b"v", producer="p", sequence=1) == 1
        assert stream.write("t", b"w", headers=headers, producer="p", sequence=2) == 2
        placed = topic.write("t", b"v", producer="p", sequence=1)
        assert placed.offset == 1
    assert stream.write_many([("t", b"v")], producer="p", sequence=1) == range(1, 2)
    message = stream.read(2, 1)[0]
    assert message is not None
    assert dict(message.headers) == headers
    with pytest.raises(ReusedSequence):
        stream.write("t", b"other", producer="p", sequence=1)
    with pytest.raises(InvalidInput, match="go together"):
        stream.write("t", b"v", sequence=3)
    assert (stream.info().last, topic.info()[placed.partition].last) == (2, 1)
