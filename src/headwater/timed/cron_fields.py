"""The five fields of a cron expression: minute, hour, day of the month, month, day of the week.

A field is ``*``, a number, a range ``a-b``, either of the latter with a step ``/n``, or a list of
these. Months and days of the week also have names (``jan``, ``mon``). What other programs add (L,
W, #, ?, seconds, years) is refused, because it means something else in each of them.

Days: when day of the month and day of the week are both restricted, a day matches that fits either,
as crontab(5) has it. A field that begins with ``*`` does not restrict in this sense.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Final, NamedTuple

from headwater.errors import InvalidInput

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
