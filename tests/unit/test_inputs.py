"""What every data type accepts: spans of time, and the deadline by each of its names."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import pytest

from headwater.errors import InvalidInput
from headwater.kernel.inputs import check_block, check_ms, check_span


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        (0, 0),
        (1500, 1500),
        (dt.timedelta(), 0),
        (dt.timedelta(minutes=2), 120_000),
        (dt.timedelta(microseconds=1), 1),
        (dt.timedelta(milliseconds=7, microseconds=1), 8),
    ],
)
def test_a_span_of_time_is_ms_or_a_timedelta(given: Any, ms: int) -> None:
    found = check_ms(given, "delay_ms")
    assert (found, type(found)) == (ms, int)


@pytest.mark.parametrize(
    "given", [-1, 1.5, "5", True, None, dt.timedelta(seconds=-1), dt.timedelta(days=4000)]
)
def test_what_is_no_span_of_time_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match="delay_ms must be"):
        check_ms(given, "delay_ms")


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        ("250", 250),
        ("500ms", 500),
        ("30s", 30_000),
        ("5 m", 300_000),
        ("12h", 43_200_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        (40, 40),
        (dt.timedelta(seconds=2), 2000),
    ],
)
def test_where_words_are_taken_a_span_of_time_may_have_a_unit(given: Any, ms: int) -> None:
    assert check_span(given, "timeout") == ms


@pytest.mark.parametrize("given", ["", "s", "5x", "-1s", "1.5s", "٣s", -1, None, "40000d"])
def test_words_that_are_no_span_of_time_are_refused_by_name(given: Any) -> None:
    with pytest.raises(InvalidInput, match="timeout"):
        check_span(given, "timeout")


@pytest.mark.parametrize(
    ("given", "ms"),
    [(None, 0), (0, 0), (5, 5), (2.5, 2.5), (math.inf, math.inf), (dt.timedelta(seconds=2), 2000)],
)
def test_a_blocking_time_may_be_without_end(given: Any, ms: float) -> None:
    assert check_block(given) == ms


@pytest.mark.parametrize("given", [-1, math.nan, "5", True, dt.timedelta(seconds=-1)])
def test_what_is_no_blocking_time_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match="block_ms must be 0 or more"):
        check_block(given)
