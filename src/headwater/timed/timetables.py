"""Timetables: at which moments a job is due, as milliseconds since 1970. Pure functions of time.

An *interval* is due whenever the time since 1970 is a multiple of it, so that all runners agree,
and knows no time zone.

A *cron expression* is read in its time zone. Where the clocks are changed:

- A time that does not exist is due once, at the moment of the jump. All times that one jump leaves
  out are due together, once.
- A time that exists twice is due once, the first time.
- When the hour field matches every hour, each real minute is taken for itself: what the jump leaves
  out is not due, and what exists twice is due twice. So ``0 * * * *`` runs once in each real hour.
"""

from __future__ import annotations

import datetime as dt
import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from headwater.errors import InvalidInput
from headwater.kernel.inputs import Duration, check_ms

# ── Cron fields ───────────────────────────────────────────────────────────────────────────────────
# The five fields of a cron expression: minute, hour, day of the month, month, day of the week.
#
# A field is ``*``, a number, a range ``a-b``, either of the latter with a step ``/n``, or a list
# of these. Months and days of the week also have names (``jan``, ``mon``). What other programs add
# (L, W, #, ?, seconds, years) is refused, because it means something else in each of them.
#
# Days: when day of the month and day of the week are both restricted, a day matches that fits
# either, as crontab(5) has it. A field that begins with ``*`` does not restrict in this sense.


_MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS: Final = (
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
)  # fmt: skip
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
# How many days a month may have.
_LENGTHS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class _Field(NamedTuple):
    name: str
    least: int
    most: int
    names: dict[str, int]


_FIELDS: Final = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of the month", 1, 31, {}),
    _Field("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    # 7 is Sunday, too.
    _Field("day of the week", 0, 7, {name: number for number, name in enumerate(_DAYS)}),
)


class CronFields(NamedTuple):
    """What an expression matches. Days of the week count from 0, which is Sunday."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool

    def matches_day(self, day: dt.date) -> bool:
        """Return whether the expression matches some time of a day."""
        if day.month not in self.months:
            return False
        by_month, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_month or by_week if self.either_day else by_month and by_week


def parse_cron(expression: str) -> CronFields:
    """Parse an expression of five fields, or a name such as ``@daily``; raises InvalidInput."""
    if not isinstance(expression, str):
        raise InvalidInput(f"a cron expression must be a str, not {type(expression).__name__}")
    text = expression.strip().lower()
    if text.startswith("@"):
        if text not in _MACROS:
            known = ", ".join(_MACROS)
            raise InvalidInput(f"{expression!r} is not a known name of a time; use one of {known}")
        text = _MACROS[text]
    words = text.split()
    if len(words) != len(_FIELDS):
        hint = "; for seconds use every('10s')" if len(words) in (6, 7) else ""
        raise InvalidInput(
            f"the cron expression {expression!r} has {len(words)} fields; give five: minute, hour, "
            f"day of the month, month, day of the week{hint}"
        )
    found = [_values(word, field, expression) for word, field in zip(words, _FIELDS, strict=True)]
    minutes, hours, days, months, weekdays = found
    either = not (words[2].startswith("*") or words[4].startswith("*"))
    fields = CronFields(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        frozenset(days),
        frozenset(months),
        frozenset(day % 7 for day in weekdays),
        either,
    )
    if not either and not any(min(days) <= _LENGTHS[month - 1] for month in months):
        raise InvalidInput(
            f"the cron expression {expression!r} matches no day of any year; change the day of the "
            "month or the month"
        )
    return fields


def _values(word: str, field: _Field, expression: str) -> set[int]:
    found: set[int] = set()
    for part in word.split(","):
        found.update(_range(part, field, expression))
    return found


def _range(part: str, field: _Field, expression: str) -> range:
    match = re.fullmatch(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/([0-9]+))?", part, re.ASCII)
    if not match:
        raise _refused(part, field, expression, "write *, a number, a range a-b, */n or a-b/n")
    star, first, last, step = match.groups()
    if step is not None and not 0 < int(step) <= field.most:
        raise _refused(part, field, expression, f"the step must be from 1 to {field.most}")
    if star:
        # 0 and 7 are one day: a step from 0 would count it twice.
        most = 6 if field.names and field.most == 7 else field.most
        return range(field.least, most + 1, int(step or 1))
    low = _number(first, part, field, expression)
    if last is None:
        if step is not None:
            cure = f"a step needs a range: write {first}-{field.most}/{step}"
            raise _refused(part, field, expression, cure)
        return range(low, low + 1)
    high = _number(last, part, field, expression)
    # A week may be written to end with Sunday.
    high = 7 if high == 0 < low and field.most == 7 else high
    if high < low:
        raise _refused(part, field, expression, f"a range must not go back: write {last}-{first}")
    return range(low, high + 1, int(step or 1))


def _number(word: str, part: str, field: _Field, expression: str) -> int:
    number = field.names.get(word, int(word) if word.isdecimal() else None)
    if number is None or not field.least <= number <= field.most:
        names = f" or {', '.join(field.names)}" if field.names else ""
        cure = f"use {field.least} to {field.most}{names}"
        raise _refused(part, field, expression, cure)
    return number


def _refused(part: str, field: _Field, expression: str, cure: str) -> InvalidInput:
    return InvalidInput(
        f"{part!r} is no {field.name} in the cron expression {expression!r}; {cure}"
    )


# ── Timetables ────────────────────────────────────────────────────────────────────────────────────


# The shortest interval: work that is due more often is not a timed job, but a loop.
LEAST_INTERVAL_MS: Final = 1000
_MINUTE: Final = dt.timedelta(minutes=1)
_HOUR: Final = dt.timedelta(hours=1)
_DAY: Final = dt.timedelta(days=1)
# The longest that a search continues: a Sunday that is 29 February may be 40 years away.
_MOST_DAYS: Final = 41 * 366
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Timetable(Protocol):
    """The moments at which something is due."""

    def next_after(self, time_ms: int) -> int | None:
        """Return the first moment after a time; None when there is none in sight."""

    def last_until(self, time_ms: int) -> int | None:
        """Return the last moment at or before a time; None when there is none in sight."""


def count_due(table: Timetable, after_ms: int, until_ms: int, most: int) -> int:
    """Return how many moments are after one time and up to another; ``most`` stands for more."""
    found, at = 0, table.next_after(after_ms)
    while at is not None and at <= until_ms and found < most:
        found, at = found + 1, table.next_after(at)
    return found


class IntervalTable:
    """Due at every multiple of an interval in milliseconds, counted from 1970."""

    def __init__(self, interval_ms: Duration) -> None:
        self.interval_ms = check_ms(interval_ms, "the interval", LEAST_INTERVAL_MS)

    def next_after(self, time_ms: int) -> int:
        """Return the first moment after a time."""
        return (time_ms // self.interval_ms + 1) * self.interval_ms

    def last_until(self, time_ms: int) -> int:
        """Return the last moment at or before a time."""
        return time_ms // self.interval_ms * self.interval_ms


class CronTable:
    """Due when a cron expression matches, in a time zone."""

    def __init__(self, expression: str, tz: str = "UTC") -> None:
        self._fields = parse_cron(expression)
        self._zone = zone_of(tz)
        self._table: _RealMinutes | _WallTimes
        if len(self._fields.hours) == 24:
            self._table = _RealMinutes(self._fields, self._zone)
        else:
            self._table = _WallTimes(self._fields, self._zone)

    def next_after(self, time_ms: int) -> int | None:
        """Return the first moment after a time; None when there is none in sight."""
        found = self._table.next_after(_utc(time_ms))
        return None if found is None else _ms(found)

    def last_until(self, time_ms: int) -> int | None:
        """Return the last moment at or before a time; None when there is none in sight."""
        found = self._table.last_until(_utc(time_ms))
        return None if found is None else _ms(found)


@lru_cache(maxsize=64)
def zone_of(tz: str) -> ZoneInfo:
    """Return the time zone of that name; raises InvalidInput."""
    try:
        return ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise InvalidInput(
            f"there is no time zone {tz!r} here; use a name such as 'Europe/Berlin', and install "
            "tzdata where the system has no zones"
        ) from None


class _WallTimes:
    """Times that the clock on the wall shows, each of which is one moment."""

    def __init__(self, fields: CronFields, zone: ZoneInfo) -> None:
        self._fields, self._zone = fields, zone
        self._times = [dt.time(hour, minute) for hour in fields.hours for minute in fields.minutes]

    def next_after(self, time: dt.datetime) -> dt.datetime | None:
        # The moments have the order of the times on the wall, and those up to now are over.
        now = time.astimezone(self._zone).replace(tzinfo=None)
        for day in _days(now.date(), 1):
            if self._fields.matches_day(day):
                first = bisect_right(self._times, now.time()) if day == now.date() else 0
                for wall in self._times[first:]:
                    found = self._moment(dt.datetime.combine(day, wall))
                    if found > time:
                        return found
        return None

    def last_until(self, time: dt.datetime) -> dt.datetime | None:
        # In an hour that exists for the second time, all of its times are over already; a zone may
        # even have moved by a day.
        day_after = time.astimezone(self._zone).date() + _DAY
        for day in _days(day_after, -1):
            if self._fields.matches_day(day):
                for wall in reversed(self._times):
                    found = self._moment(dt.datetime.combine(day, wall))
                    if found <= time:
                        return found
        return None

    def _moment(self, wall: dt.datetime) -> dt.datetime:
        """Return when the clock shows a time first; for one that it leaves out, when it jumps."""
        found = wall.replace(tzinfo=self._zone).astimezone(dt.UTC)
        if found.astimezone(self._zone).replace(tzinfo=None) == wall:
            return found
        # The jump is between the moments that the offsets before and after it would give.
        late = found
        early = wall.replace(tzinfo=self._zone, fold=1).astimezone(dt.UTC)
        while late - early > dt.timedelta(seconds=1):
            middle = early + (late - early) // 2
            if middle.astimezone(self._zone).replace(tzinfo=None) > wall:
                late = middle
            else:
                early = middle
        return late.replace(microsecond=0)


class _RealMinutes:
    """Minutes as they pass, whatever the clock on the wall shows; every hour matches."""

    def __init__(self, fields: CronFields, zone: ZoneInfo) -> None:
        self._fields, self._zone = fields, zone

    def next_after(self, time: dt.datetime) -> dt.datetime | None:
        here = time.astimezone(self._zone)
        here = self._moved(here, _MINUTE - _within_minute(here))
        end = time + _MOST_DAYS * _DAY
        while here.astimezone(dt.UTC) < end:
            if not self._fields.matches_day(here.date()):
                here = self._next_day(here)
                continue
            later = [minute for minute in self._fields.minutes if minute >= here.minute]
            if later and later[0] == here.minute:
                return here.astimezone(dt.UTC)
            ahead = (later[0] if later else 60) - here.minute
            here = self._forward(here, ahead * _MINUTE)
        return None

    def last_until(self, time: dt.datetime) -> dt.datetime | None:
        # By the search forward, from further and further back.
        back = _HOUR
        while back < 2 * _MOST_DAYS * _DAY:
            found = self.next_after(time - back)
            if found is not None and found <= time:
                # What is behind it is nearer, and there are at most 60 in an hour.
                after = self.next_after(found)
                while after is not None and after <= time:
                    found, after = after, self.next_after(after)
                return found
            back *= 2
        return None

    def _next_day(self, here: dt.datetime) -> dt.datetime:
        """Return the beginning of the next day that matches, or a time shortly before it."""
        for day in _days(here.date() + _DAY, 1):
            if self._fields.matches_day(day):
                midnight = dt.datetime.combine(day, dt.time(), self._zone).astimezone(dt.UTC)
                near = (midnight - 2 * _DAY).astimezone(self._zone)
                if near.astimezone(dt.UTC) > here.astimezone(dt.UTC):
                    return self._moved(near, -_within_minute(near))
                break
        return self._forward(here, (60 - here.minute) * _MINUTE)

    def _forward(self, here: dt.datetime, span: dt.timedelta) -> dt.datetime:
        """Return the time after a span within an hour; minute by minute when clocks change."""
        there = self._moved(here, span)
        return there if there.utcoffset() == here.utcoffset() else self._moved(here, _MINUTE)

    def _moved(self, here: dt.datetime, span: dt.timedelta) -> dt.datetime:
        return (here.astimezone(dt.UTC) + span).astimezone(self._zone)


def _within_minute(time: dt.datetime) -> dt.timedelta:
    return dt.timedelta(seconds=time.second, microseconds=time.microsecond)


def _days(first: dt.date, step: int) -> Iterator[dt.date]:
    for days in range(_MOST_DAYS):
        yield first + step * days * _DAY


def _utc(time_ms: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(milliseconds=time_ms)


def _ms(time: dt.datetime) -> int:
    return (time - _EPOCH) // dt.timedelta(milliseconds=1)
