"""offset_at finds the first message at or after a time, however the times lie."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pyarrow as pa
import pytest

from headwater import Headwater, InvalidInput, Stream
from tests.support.entries import entries
from tests.support.watch import let_pass


def append_times(stream: Stream, times: list[int], tags: list[str] | None = None) -> None:
    rows = entries(len(times))
    columns = {"tag": tags or [t for t, _ in rows], "value": [v for _, v in rows], "time": times}
    stream.append(pa.table(columns))


def first_at(stream: Stream, time_ms: int) -> int:
    """Look for it the long way."""
    last = stream.info().last
    rows = stream.read(1, last)
    return next((m.offset for m in rows if m and m.time_ms >= time_ms), last + 1)


def check_all(stream: Stream, times: list[int]) -> None:
    for time in sorted({0, *times, *(t + 1 for t in times), *(max(t - 1, 0) for t in times)}):
        assert stream.offset_at(time) == first_at(stream, time), f"at {time}"


def test_the_first_message_at_or_after_a_time_is_found(stream: Stream) -> None:
    append_times(stream, [100, 200, 200, 300])
    assert [stream.offset_at(t) for t in (0, 100, 101, 200, 201, 300)] == [1, 1, 2, 2, 4, 4]
    assert stream.offset_at(301) == 5


@pytest.mark.parametrize("sealed", [False, True])
def test_times_that_fall_are_found_too(stream: Stream, sealed: bool) -> None:
    parts = [[50, 900, 10, 20], [30, 40, 60], [5, 1000, 70], [80]]
    for part in parts:
        append_times(stream, part)
        if sealed:
            stream.seal()
    check_all(stream, [t for part in parts for t in part])


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 9])
def test_an_evicted_message_is_never_the_answer(stream: Stream, limit: int) -> None:
    for part in ([100, 5, 6], [7, 8, 200], [9, 300, 4], [10]):
        append_times(stream, part)
        stream.seal()
    stream.evict(limit)
    check_all(stream, [100, 5, 6, 7, 8, 200, 9, 300, 4, 10])


def test_a_compacted_message_is_never_the_answer(stream: Stream) -> None:
    append_times(stream, [100, 500, 120], ["a", "b", "c"])
    stream.seal()
    append_times(stream, [130, 140, 150], ["a", "b", "d"])
    stream.seal()
    append_times(stream, [160, 600, 170], ["a", "d", "e"])
    stream.compact()
    check_all(stream, [100, 500, 120, 130, 140, 150, 160, 600, 170])


def test_any_mix_of_times_and_layouts_is_exact(stream: Stream) -> None:
    draw = random.Random(7)
    times: list[int] = []
    for _ in range(12):
        part = [draw.randrange(1000) for _ in range(draw.choice([1, 5, 30, 120]))]
        append_times(stream, part, [f"t{draw.randrange(50)}" for _ in part])
        times += part
        if draw.random() < 0.4:
            stream.seal()
        if draw.random() < 0.2:
            stream.compact()
        if draw.random() < 0.3:
            stream.evict(draw.randrange(1, len(times)))
        for time in draw.choices(range(1001), k=10):
            assert stream.offset_at(time) == first_at(stream, time)


def test_times_given_by_the_server_are_found(client: Headwater, stream: Stream) -> None:
    for size in (1, 3, 50, 600, 1):
        stream.write_many(entries(size))
        let_pass(client, 2)
    check_all(stream, sorted({m.time_ms for m in stream.read(1, 1000) if m}))


def test_a_datetime_is_taken_with_its_zone(stream: Stream) -> None:
    append_times(stream, [1_000, 2_000, 3_000])
    east = dt.timezone(dt.timedelta(hours=5))
    assert stream.offset_at(dt.datetime(1970, 1, 1, 0, 0, 2, tzinfo=dt.UTC)) == 2
    assert stream.offset_at(dt.datetime(1970, 1, 1, 5, 0, 2, tzinfo=east)) == 2


@pytest.mark.parametrize("time", [-1, 1.5, "now", None, True, 2**53, dt.datetime(2020, 1, 1)])  # noqa: DTZ001
def test_what_is_not_a_time_is_refused(stream: Stream, time: Any) -> None:
    with pytest.raises(InvalidInput):
        stream.offset_at(time)
