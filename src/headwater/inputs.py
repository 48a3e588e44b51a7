"""What every data type accepts: names, counts, spans and points in time.

Anything else raises InvalidInput before anything is sent.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Param, Shape

One = TypeVar("One")
# A span of time: a number of milliseconds, or a timedelta.
Duration: TypeAlias = "int | dt.timedelta"
# The same, or a text such as "500ms", "30s", "5m", "12h", "7d", "2w".
Span: TypeAlias = "int | dt.timedelta | str"

# The name of a deadline in messages: by whichever of its names it was given.
DEADLINE: Final = "ack_ms (or retry_ms)"
LEASE: Final = "ack_ms (or lease_ms)"
MAX_NAME_BYTES: Final = 200
OWN_PREFIX: Final = "hw."
# Scores and Lua's numbers are doubles: whole numbers are exact up to here.
MAX_EXACT: Final = 2**53 - 1
MAX_MS: Final = 10 * 365 * 24 * 3600 * 1000
_MILLISECOND: Final = dt.timedelta(milliseconds=1)
_UNITS_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}


DelayMs: TypeAlias = Annotated[
    Duration, Param("Milliseconds until they are redelivered.", Shape.MS, 0, MAX_MS)
]
AckMs: TypeAlias = Annotated[
    Duration,
    Param(
        "Milliseconds after which a message that is not acknowledged is redelivered.",
        Shape.MS,
        1,
        MAX_MS,
    ),
]


def check_name(name: str, what: str) -> str:
    """Accept a name of 1 to 200 bytes without control characters, white space and braces."""
    if not isinstance(name, str):
        raise InvalidInput(f"the name of a {what} must be a str, not {type(name).__name__}")
    if not name or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise InvalidInput(
            f"the name of a {what} must have 1 to {MAX_NAME_BYTES} bytes, "
            f"not {len(name.encode('utf-8', 'surrogatepass'))}; choose another"
        )
    for character in name:
        if character in "{}" or character.isspace() or not character.isprintable():
            raise InvalidInput(
                f"the name of a {what} must not contain {character!r}; use letters, digits, "
                "and other characters except braces and white space"
            )
    return name


class OwnName(str):
    """A name that Headwater gives to an object of its own: it begins with ``hw.``."""

    __slots__ = ()


def refuse_own_name(name: str, what: str) -> None:
    """Refuse a name of Headwater's own for an object that a user creates or writes to."""
    if name.startswith(OWN_PREFIX) and not isinstance(name, OwnName):
        raise InvalidInput(
            f"{name!r} cannot be the name of a {what}: names that begin with {OWN_PREFIX!r} are "
            "Headwater's own; choose another"
        )


def check_int(value: int, what: str, least: int, most: int) -> int:
    """Accept a whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{what} must be an int, not {value!r}")
    if not least <= value <= most:
        raise InvalidInput(f"{what} must be from {least} to {most}, not {value}")
    return value


def whole_ms(span: Duration) -> int:
    """Return a span of time in milliseconds; a part of one counts as a whole."""
    return -(-span // _MILLISECOND) if isinstance(span, dt.timedelta) else span


def check_ms(value: Duration, what: str, least: int = 0, most: int = MAX_MS) -> int:
    """Accept a span of time, and return it in milliseconds."""
    return check_int(value if type(value) is int else whole_ms(value), what, least, most)


def parse_span(text: str) -> int:
    """Return the milliseconds of a text such as "30s" or "5m"; a bare number is milliseconds.

    Raises InvalidInput.
    """
    match = re.fullmatch(r"([0-9]+)\s*(ms|[smhdw])?", text)
    if not match:
        raise InvalidInput(f"{text!r} is not a span of time like 7d, 12h, 30m, 45s or 500ms")
    return int(match[1]) * _UNITS_MS[match[2] or "ms"]


def parse_size(text: str) -> int:
    """Return the bytes of a text such as "1000000", "500MB" or "2GiB"; raises InvalidInput."""
    match = re.fullmatch(r"([0-9]+)\s*(?:([kmgt])(i?))?b?", text.lower())
    if not match:
        raise InvalidInput(f"{text!r} is not a size like 1000000, 500MB or 2GiB")
    power = " kmgt".index(match[2] or " ")
    unit: int = (1024 if match[3] else 1000) ** power
    return int(match[1]) * unit


def check_span(value: Span, what: str, least: int = 0, most: int = MAX_MS) -> int:
    """Accept a span of time, also as a text such as "30s", and return it in milliseconds."""
    if isinstance(value, str):
        try:
            value = parse_span(value)
        except InvalidInput as error:
            raise InvalidInput(f"{what}: {error}") from None
    return check_ms(value, what, least, most)


def check_block(block_ms: Duration | float | None) -> float:
    """Turn a blocking time into milliseconds: None and 0 do not wait, infinity waits forever."""
    if block_ms is None:
        return 0
    if isinstance(block_ms, dt.timedelta):
        block_ms = block_ms / _MILLISECOND
    # What is not a number is not 0 or more, either.
    if isinstance(block_ms, bool) or not isinstance(block_ms, int | float) or not block_ms >= 0:
        raise InvalidInput(
            f"block_ms must be 0 or more milliseconds, or a timedelta, not {block_ms!r}"
        )
    return block_ms


def deadline(
    ack_ms: Duration | None, older: Duration | None, older_name: str = "retry_ms"
) -> Duration | None:
    """Return how long a consumer may hold what it took: ``ack_ms``, or the older name of it."""
    if older is None:
        return ack_ms
    if ack_ms is not None:
        raise InvalidInput(f"ack_ms and {older_name} are names of one deadline; give one of them")
    return older


def needed_deadline(ack_ms: Duration | None, older: Duration | None) -> Duration:
    """Return the deadline of what is extended, which must be given."""
    found = deadline(ack_ms, older)
    if found is None:
        raise InvalidInput("give ack_ms, the time until messages are redelivered")
    return found


def to_ms(time: int | dt.datetime, what: str = "time_ms") -> int:
    """Turn a point in time into milliseconds since 1970; a datetime must know its zone."""
    if isinstance(time, dt.datetime):
        if time.tzinfo is None:
            raise InvalidInput(
                f"{time!r} has no time zone; use datetime.now(timezone.utc) or the like"
            )
        return math.floor(time.timestamp() * 1000)
    return check_int(time, what, 0, MAX_EXACT)


def one_by_one(
    arguments: Iterable[Any], parse: Callable[[Any], One | None], accepted: str
) -> list[One]:
    """Parse arguments of a call that takes single things and iterables of them, in any mixture.

    ``parse`` returns None for what is no single thing.
    """
    found: list[One] = []
    for item in arguments:
        one = parse(item)
        if one is not None:
            found.append(one)
        elif isinstance(item, Iterable) and not isinstance(item, str | bytes | Mapping):
            found += one_by_one(item, parse, accepted)
        else:
            raise InvalidInput(f"give {accepted}, or iterables of them, not {type(item).__name__}")
    return found
