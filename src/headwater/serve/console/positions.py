"""Places in a stream as people type them: an offset, steps from here, the ends, or a time."""

from __future__ import annotations

import datetime as dt
import time
from typing import Final

from headwater.errors import InvalidInput
from headwater.serve.console.calls import PageCall

# No offset has more digits.
_DIGITS: Final = 16
_SPANS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def steps_of(text: str) -> int | None:
    """Return how far a text like +1000 or -1000 goes; None for another one."""
    if text[:1] not in ("+", "-", "−") or not text[1:].isdecimal() or len(text) > _DIGITS:
        return None
    return int(text[1:]) if text[0] == "+" else -int(text[1:])


def moment_of(text: str) -> dt.datetime | None:
    """Return a time: ISO 8601, UTC without a zone, or a span before now like 2h; None else."""
    text = text.strip()
    if text[:-1].isdecimal() and len(text) <= _DIGITS and text[-1] in _SPANS_S:
        past = time.time() - int(text[:-1]) * _SPANS_S[text[-1]]
        return dt.datetime.fromtimestamp(max(past, 0), dt.UTC)
    # A number would be read as a year, or as a day of the calendar.
    if text.isdecimal():
        return None
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.replace(tzinfo=moment.tzinfo or dt.UTC)


async def position_of(call: PageCall, stream: str, text: str, base: int) -> int | str:
    """Return the offset that a form asks for, or ``first`` or ``last``; raises InvalidInput.

    Steps are counted from ``base``. A time costs a call.
    """
    word = text.replace(",", "").strip()
    if word in ("first", "last"):
        return word
    if word.isdecimal() and 0 < len(word) <= _DIGITS:
        return int(word)
    if (steps := steps_of(word)) is not None:
        return max(base + steps, 1)
    if (moment := moment_of(text)) is not None:
        return await call.hw.stream(stream).offset_at(moment)
    raise InvalidInput(
        f"{text!r} is no place in a stream; give an offset, +1000 or -1000, first, last, a span "
        "before now like 2h, or a time like 2026-11-17T14:00"
    )
