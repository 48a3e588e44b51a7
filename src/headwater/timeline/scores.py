"""Scores: numbers that a double keeps exactly, in every spelling; all others are refused.

A whole number is accepted when a double holds that very number. Most fractions are held by no
double, 0.1 for example; one is accepted when it is how programs print a double: with as few digits
as tell it from its neighbours, with 17 digits, or with all of them. So the score that is kept is
the number that was written, and is shown as that.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final

from headwater.errors import InvalidInput

MAX_EXACT: Final = 2**53

_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
# A double can represent any number of this many characters, without an exponent, distinctly.
_SAFE_LENGTH: Final = 15


def check_score(score: float) -> float:
    """Return a number that a double holds exactly; minus zero is zero. Raises InvalidInput."""
    if type(score) is float and math.isfinite(score):
        return score + 0.0
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise InvalidInput(
            f"a score must be an int or a float, not {score!r}; convert it, or scale it to a whole "
            "number"
        )
    try:
        number = float(score)
    except OverflowError:
        raise InvalidInput(f"the score {score} is too large for a double; scale it down") from None
    if not math.isfinite(number):
        raise InvalidInput(f"a score must be finite, not {score}, which has no place in order")
    if number != score:
        raise _rounded(str(score))
    return number + 0.0


def read_score(text: str) -> float:
    """Return the number that a text states in decimal, as in JSON; raises InvalidInput."""
    if not _NUMBER.fullmatch(text):
        raise InvalidInput(f"a score must be a number, not {_short(text)}; write it as 17 or 17.5")
    return read_number(text)


def read_number(text: str) -> float:
    """Return the score that a text spells which is known to be a number; raises InvalidInput."""
    number = float(text)
    if len(text) <= _SAFE_LENGTH and "e" not in text and "E" not in text:
        return number + 0.0
    if -MAX_EXACT < number < MAX_EXACT and repr(number) == text:
        return number + 0.0
    if not math.isfinite(number):
        raise InvalidInput(f"the score {_short(text)} is too large for a double; scale it down")
    written = Decimal(text)
    if written != Decimal(number):
        printed = () if written == written.to_integral_value() else (repr(number), f"{number:.17g}")
        if all(written != Decimal(one) for one in printed):
            raise _rounded(_short(text))
    return number + 0.0


def exact(score: float) -> int | float:
    """Return a score so that JSON has it exactly: JSON shortens a float, but not an int."""
    return score if -MAX_EXACT <= score <= MAX_EXACT else int(score)


def _rounded(text: str) -> InvalidInput:
    return InvalidInput(
        f"the score {text} would be rounded: doubles hold whole numbers exactly up to 2**53, and "
        "about 16 digits; use milliseconds or microseconds, not nanoseconds"
    )


def _short(text: str) -> str:
    return text if len(text) <= 60 and text.isprintable() else f"{text[:60]!r}..."
