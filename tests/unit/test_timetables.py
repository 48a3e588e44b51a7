"""Timetables: when jobs are due, compared with a slow look at every minute."""

from __future__ import annotations

import datetime as dt
import os
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headwater.errors import InvalidInput
from headwater.timed.timetables import CronTable, IntervalTable, count_due

LONG = int(os.environ.get("HEADWATER_LONG", "1"))
# A zone, and a moment near which its clocks are changed: by an hour, half an hour, at midnight, at
# one minute past it, for Ramadan, by a whole day, and never.
CHANGES = [
    ("Europe/Berlin", "2024-03-31T01:00"),
    ("Europe/Berlin", "2024-10-27T01:00"),
    ("America/New_York", "2025-03-09T07:00"),
    ("America/New_York", "2025-11-02T06:00"),
    ("Australia/Lord_Howe", "2024-10-05T15:30"),
    ("Australia/Lord_Howe", "2025-04-05T15:00"),
    ("America/Havana", "2024-03-10T05:00"),
    ("America/Havana", "2024-11-03T05:00"),
    ("America/St_Johns", "2010-03-14T03:31"),
    ("America/St_Johns", "2010-11-07T02:31"),
    ("Africa/Casablanca", "2024-03-10T02:00"),
    ("Pacific/Apia", "2011-12-30T10:00"),
    ("Asia/Kathmandu", "2024-06-01T00:00"),
    ("UTC", "2024-02-28T23:00"),
]
WINDOW_MINUTES = 36 * 60


class Field(NamedTuple):
    text: str
    values: frozenset[int]


def fields(least: int, most: int) -> st.SearchStrategy[Field]:
    """Fields as people write them, with the values that they stand for."""
    numbers = st.integers(least, most)
    one = numbers.map(lambda n: Field(str(n), frozenset({n})))
    step = st.integers(1, most)
    every = step.map(lambda n: Field(f"*/{n}", frozenset(range(least, most + 1, n))))
    pair = st.tuples(numbers, numbers).map(sorted)
    spans = st.tuples(pair, step).map(
        lambda s: Field(f"{s[0][0]}-{s[0][1]}/{s[1]}", frozenset(range(s[0][0], s[0][1] + 1, s[1])))
    )
    lists = st.lists(one | spans, min_size=2, max_size=3).map(
        lambda parts: Field(
            ",".join(part.text for part in parts), frozenset().union(*(p.values for p in parts))
        )
    )
    star = st.just(Field("*", frozenset(range(least, most + 1))))
    return star | one | every | spans | lists


@lru_cache
def walls(zone: str, change: str) -> list[tuple[int, dt.datetime]]:
    """Every minute of some days: when it is, and what the clock on the wall shows."""
    middle = dt.datetime.fromisoformat(change).replace(tzinfo=dt.UTC)
    first = middle - dt.timedelta(minutes=WINDOW_MINUTES)
    minutes = (first + dt.timedelta(minutes=n) for n in range(2 * WINDOW_MINUTES))
    here = ZoneInfo(zone)
    return [
        (int(minute.timestamp() * 1000), minute.astimezone(here).replace(tzinfo=None))
        for minute in minutes
    ]


def slowly(given: list[Field], zone: str, change: str) -> list[int]:
    """When an expression is due, by looking at every minute of the window."""
    minute, hour, day, month, weekday = given
    either = not (day.text.startswith("*") or weekday.text.startswith("*"))

    def matches(wall: dt.datetime) -> bool:
        by_day, by_week = wall.day in day.values, wall.isoweekday() % 7 in weekday.values
        return (
            wall.minute in minute.values
            and wall.hour in hour.values
            and wall.month in month.values
            and (by_day or by_week if either else by_day and by_week)
        )

    shown = walls(zone, change)
    if len(hour.values) == 24:
        return [at for at, wall in shown if matches(wall)]
    first_shown: dict[dt.datetime, int] = {}
    for at, wall in shown:
        first_shown.setdefault(wall, at)
    due = {at for wall, at in first_shown.items() if matches(wall)}
    for (_, before), (at, after) in pairwise(shown):
        left_out = before + dt.timedelta(minutes=1)
        while left_out < after:
            if matches(left_out):
                due.add(at)
            left_out += dt.timedelta(minutes=1)
    return sorted(due)


@settings(max_examples=60 * LONG, deadline=None)
@given(
    st.tuples(fields(0, 59), fields(0, 23), fields(1, 31), fields(1, 12), fields(0, 6)).map(list),
    st.sampled_from(CHANGES),
    st.integers(WINDOW_MINUTES // 2, WINDOW_MINUTES + WINDOW_MINUTES // 2),
    st.integers(-1, 1),
)
def test_a_cron_expression_is_due_when_a_look_at_every_minute_says_so(
    given: list[Field], change: tuple[str, str], minute: int, beside_ms: int
) -> None:
    # 30 February is refused.
    assume(given[2].text[0] == "*" or min(given[2].values) <= 29 or given[3].values != {2})
    assume(
        given[2].text[0] == "*" or min(given[2].values) <= 30 or given[3].values - {2, 4, 6, 9, 11}
    )
    due = slowly(given, *change)
    table = CronTable(" ".join(field.text for field in given), change[0])
    shown = walls(*change)
    now = shown[minute][0] + beside_ms
    after = next((at for at in due if at > now), None)
    found = table.next_after(now)
    # What lies beyond the window, the slow reading does not know.
    assert found == after if after is not None else found is None or found > shown[-1][0]
    # Before the window, a time may have been shown that exists twice.
    before = next((at for at in reversed(due) if at <= now), None)
    earlier = table.last_until(now)
    if before is not None and before > shown[120][0]:
        assert earlier == before
    elif before is None:
        assert earlier is None or earlier <= shown[120][0]


@given(st.integers(0, 2**42), st.integers(1000, 10**9))
def test_an_interval_is_due_at_multiples_since_1970(now: int, interval: int) -> None:
    table = IntervalTable(interval)
    after, before = table.next_after(now), table.last_until(now)
    assert after % interval == before % interval == 0
    assert before <= now < after == before + interval


def moments(expression: str, tz: str, start: str, count: int) -> list[str]:
    table, zone = CronTable(expression, tz), ZoneInfo(tz)
    at: int | None = int(dt.datetime.fromisoformat(start).replace(tzinfo=zone).timestamp() * 1000)
    found = []
    for _ in range(count):
        assert at is not None
        at = table.next_after(at)
        assert at is not None
        found.append(dt.datetime.fromtimestamp(at / 1000, zone).isoformat(timespec="minutes"))
    return found


def test_a_time_that_does_not_exist_is_due_once_when_the_clock_jumps() -> None:
    assert moments("*/20 2 * * *", "Europe/Berlin", "2024-03-30T12:00", 3) == [
        "2024-03-31T03:00+02:00",
        "2024-04-01T02:00+02:00",
        "2024-04-01T02:20+02:00",
    ]


def test_a_time_that_exists_twice_is_due_the_first_time() -> None:
    assert moments("30 2 * * *", "Europe/Berlin", "2024-10-26T12:00", 2) == [
        "2024-10-27T02:30+02:00",
        "2024-10-28T02:30+01:00",
    ]


def test_what_is_due_in_every_hour_is_due_in_every_real_hour() -> None:
    assert moments("30 * * * *", "Europe/Berlin", "2024-10-27T01:00", 4) == [
        "2024-10-27T01:30+02:00",
        "2024-10-27T02:30+02:00",
        "2024-10-27T02:30+01:00",
        "2024-10-27T03:30+01:00",
    ]
    assert moments("30 * * * *", "Europe/Berlin", "2024-03-31T01:00", 2) == [
        "2024-03-31T01:30+01:00",
        "2024-03-31T03:30+02:00",
    ]


def test_a_day_of_the_month_and_a_day_of_the_week_match_either() -> None:
    assert moments("0 0 13 * fri", "UTC", "2024-09-11T00:00", 4) == [
        "2024-09-13T00:00+00:00",
        "2024-09-20T00:00+00:00",
        "2024-09-27T00:00+00:00",
        "2024-10-04T00:00+00:00",
    ]


def test_the_29th_of_february_is_found_years_ahead() -> None:
    assert moments("0 12 29 2 *", "UTC", "2097-01-01T00:00", 1) == ["2104-02-29T12:00+00:00"]
    assert moments("0 * 29 2 *", "UTC", "2097-01-01T00:00", 1) == ["2104-02-29T00:00+00:00"]


@pytest.mark.parametrize(
    ("expression", "same"),
    [
        ("@daily", "0 0 * * *"),
        ("@Weekly", "0 0 * * 7"),
        ("0 9 * * MON-Fri", "0 9 * * 1-5"),
        ("0 9 * jan,Jul sat-sun", "0 9 * 1,7 6,0"),
        ("  5   4 * * * ", "5 4 * * *"),
    ],
)
def test_names_stand_for_numbers(expression: str, same: str) -> None:
    assert moments(expression, "UTC", "2024-01-01T00:00", 20) == moments(
        same, "UTC", "2024-01-01T00:00", 20
    )


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("* * * *", "has 4 fields"),
        ("0 * * * * *", r"has 6 fields.*every\('10s'\)"),
        ("60 * * * *", "is no minute.*0 to 59"),
        ("* 24 * * *", "is no hour"),
        ("* * 0 * *", "is no day of the month"),
        ("* * L * *", "is no day of the month"),
        ("* * 15W * *", "is no day of the month"),
        ("* * * * 5#2", "is no day of the week"),
        ("* * * 13 *", "is no month.*1 to 12 or jan"),
        ("* * * * fri-mon", "must not go back"),
        ("5/15 * * * *", "write 5-59/15"),
        ("*/0 * * * *", "the step must be from 1"),
        ("1,,2 * * * *", "write \\*, a number"),
        ("0 0 31 2,4 *", "matches no day"),
        ("@reboot", "is not a known name"),
        (5, "must be a str"),
    ],
)
def test_other_expressions_are_refused_with_the_cure(expression: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        CronTable(expression)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", None])
def test_an_unknown_time_zone_is_refused(zone: Any) -> None:
    with pytest.raises(InvalidInput, match="no time zone"):
        CronTable("@daily", zone)


def test_an_interval_below_a_second_is_refused() -> None:
    with pytest.raises(InvalidInput, match="interval"):
        IntervalTable(999)


def test_moments_are_counted_up_to_a_bound() -> None:
    table = CronTable("*/10 * * * *")
    assert count_due(table, 0, 3_600_000, 100) == 6
    assert count_due(table, 0, 3_600_000_000, 100) == 100
