"""Since when a message waits is measured by when the stream had reached it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headwater.metrics.sweeps import LagClock
from headwater.views.overview import StreamGroup
from tests.support.samples import group, stream


def since(clock: LagClock, now_ms: int, last: int, next_: int, said_ms: int | None) -> int | None:
    facts = group(next_, 0, last + 1 - next_, said_ms, None)
    _, (row,) = clock.measured(now_ms, [stream(last)], [StreamGroup("s", facts)])
    return row.group.new_since_ms


def test_a_message_that_is_sealed_is_as_old_as_before() -> None:
    clock = LagClock()
    assert since(clock, 1000, 10, 1, 990) == 990
    # Of a node, the store knows the time of the newest message.
    assert since(clock, 9000, 500, 11, 8990) == 8990
    assert since(clock, 20_000, 500, 1, 8990) == 1000
    assert since(clock, 21_000, 500, 11, 8990) == 8990


def age(clock: LagClock, now_ms: int, last: int, needed: int, said_ms: int) -> int:
    info = replace(stream(last, sql=needed), reader_lag_ms={"sql": said_ms})
    (found,), _ = clock.measured(now_ms, [info], [])
    return found.reader_lag_ms["sql"]


def test_the_lag_of_a_reader_is_measured_as_that_of_a_group() -> None:
    clock = LagClock()
    assert age(clock, 1000, 10, 1, 10) == 10
    # The node that the message is in has a newest message of 8990.
    assert age(clock, 20_000, 500, 1, 11_010) == 19_000
    assert age(clock, 20_000, 500, 11, 11_010) == 11_010
    assert age(clock, 21_000, 500, 501, 0) == 0


def test_a_message_with_an_older_time_is_as_old_as_it_says() -> None:
    clock = LagClock()
    assert since(clock, 5000, 10, 1, 17) == 17


def test_nothing_waits_where_the_store_says_so() -> None:
    clock = LagClock()
    assert since(clock, 5000, 10, 11, None) is None


def test_a_stream_that_was_deleted_begins_again() -> None:
    clock = LagClock()
    since(clock, 1000, 100, 1, 990)
    assert since(clock, 5000, 10, 1, 4990) == 4990


@pytest.mark.parametrize("samples", [100, 5000])
def test_what_is_remembered_is_bounded_and_close(samples: int) -> None:
    clock = LagClock()
    for n in range(1, samples + 1):
        since(clock, n * 1000, n * 10, 1, n * 1000)
    written_ms = samples // 2 * 1000
    found = since(clock, samples * 1000, samples * 10, samples // 2 * 10, samples * 1000)
    assert found is not None
    assert written_ms <= found <= written_ms + samples * 1000 * 0.04
