"""Points of the history are true: rates, what lags, the worst of a step, and within a number."""

from __future__ import annotations

import pytest

from headwater.log.types import GroupInfo, StreamInfo
from headwater.metrics.history import (
    OUTBOX,
    QUIET_MS,
    STORE,
    OutboxBacklog,
    Point,
    RateBook,
    Series,
    SeriesBook,
    StepBook,
)
from headwater.metrics.sweeps import StoreSample
from headwater.views.overview import StreamGroup
from tests.support.samples import group, stream

NOW_MS = 1_000_000


def sample(at_ms: int, info: StreamInfo, facts: GroupInfo) -> StoreSample:
    return StoreSample(at_ms, [info], [StreamGroup("s", facts)])


def test_rates_are_those_between_samples_and_ages_those_of_the_messages() -> None:
    book = RateBook()
    began = sample(NOW_MS, stream(100), group(50, 9, 51, NOW_MS - 500, None))
    first = book.points(began, None)
    assert first["stream", "s"] == Point()
    assert first["group", "s", "g"] == Point(0, 0, 51, 0.5, 9, 0)
    later = sample(
        NOW_MS + 2000, stream(300, r=201), group(91, 10, 210, NOW_MS - 500, NOW_MS + 1000)
    )
    second = book.points(later, OutboxBacklog(7, 3.5, 40, 12.5))
    assert second["stream", "s"].in_per_s == 100
    assert second["group", "s", "g"] == Point(0, 20, 210, 2.5, 10, 1)
    assert second["reader", "s", "r"].lag == 100
    assert second[OUTBOX] == Point(in_per_s=12.5, lag=7, lag_s=3.5)
    assert second[STORE] == Point(100, 20, 210, 2.5, 10, 1)


def test_a_seek_and_a_stream_that_begins_again_have_no_negative_rates() -> None:
    book = RateBook()
    book.points(sample(NOW_MS, stream(100), group(90, 0, 0, None, None)), None)
    found = book.points(sample(NOW_MS + 1000, stream(5), group(1, 0, 5, NOW_MS, None)), None)
    assert found["stream", "s"].in_per_s == found["group", "s", "g"].out_per_s == 0


def test_a_longer_step_has_the_mean_of_rates_and_the_worst_of_the_rest() -> None:
    step = StepBook(10)
    series = ("queue", "q")
    assert step.add(100_000, {series: Point(10, 0, 5, 1, 0, 0)}) == []
    assert step.add(109_999, {series: Point(30, 2, 1, 9, 4, 0)}) == []
    ((of, step_s, slot, point),) = step.add(110_000, {})
    assert (of, step_s, slot) == (series, 10, 10)
    assert point == Point(20, 1, 5, 9, 4, 0)
    assert step.add(120_000, {}) == []


def chosen(book: SeriesBook, now_ms: int, *busy: Series) -> tuple[set[Series], list[Series]]:
    points = {STORE: Point(), **{one: Point(lag=len(one[1])) for one in busy}}
    written, _, gone = book.choose(now_ms, points)
    return set(written), gone


def test_as_many_series_are_kept_as_may_be_and_what_lags_most_first() -> None:
    book = SeriesBook(2, {})
    q, qq, qqq = ("queue", "q"), ("queue", "qq"), ("queue", "qqq")
    assert chosen(book, NOW_MS, q, qq, qqq) == ({STORE, qq, qqq}, [])
    assert book.unkept == 1
    # A series that was quiet for a while stays, and only then makes room.
    assert chosen(book, NOW_MS + QUIET_MS, q, qq) == ({STORE, qq}, [])
    assert chosen(book, NOW_MS + QUIET_MS + 1, q, qq) == ({STORE, q, qq}, [qqq])
    assert book.unkept == 0


@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_smaller_number_forgets_what_is_quiet(most: int) -> None:
    kept: dict[Series, int] = {("queue", str(n)): n for n in range(3)}
    book = SeriesBook(most, dict(kept))
    _, gone = chosen(book, NOW_MS + QUIET_MS)
    assert gone == list(kept)[: 3 - most]
