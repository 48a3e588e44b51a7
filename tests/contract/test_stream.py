"""What a stream promises."""

from __future__ import annotations

from headwater import Stream


def test_offsets_count_from_one_without_holes(stream: Stream) -> None:
    assert [stream.write("tag", b"value") for _ in range(3)] == [1, 2, 3]
    assert stream.write_many([("a", b"1"), ("b", b"2")]) == range(4, 6)
    assert sum(batch.num_rows for batch in stream.scan()) == 5
