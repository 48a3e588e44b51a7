"""What every data type accepts: names, counts, spans, points in time, limits; bytes in JSON.

Anything else raises InvalidInput before anything is sent.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Param, Spelling

# ── Inputs ────────────────────────────────────────────────────────────────────────────────────────


One = TypeVar("One")
# A span of time: a number of milliseconds, or a timedelta.
Duration: TypeAlias = int | dt.timedelta
# The same, or a text such as "500ms", "30s", "5m", "12h", "7d", "2w".
Span: TypeAlias = "int | dt.timedelta | str"

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
    Duration, Param("Milliseconds until they are redelivered.", Spelling.MS, 0, MAX_MS)
]
LeaseMs: TypeAlias = Annotated[
    Duration | None,
    Param("Milliseconds for which the shard is leased.", Spelling.MS, 1, MAX_MS),
]
# How many bytes a reply may have; servers give it.
MaxBytes: TypeAlias = Annotated[int | None, Param("", Spelling.ROOM)]
AckMs: TypeAlias = Annotated[
    Duration,
    Param(
        "Milliseconds after which a message that is not acknowledged is redelivered.",
        Spelling.MS,
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


# ── Limiting ──────────────────────────────────────────────────────────────────────────────────────
# Limits of a group or a queue: how many messages are in flight, and how many in a span of time.
#
# They belong to the group or queue and are in the store, which enforces them when it delivers. So
# they are the same for all members, and exact for any number of processes.


MAX_IN_FLIGHT: Final = 1_000_000
MAX_RATE_COUNT: Final = 1_000_000
# A rate is kept over at most a day: a longer span is a timed job.
MAX_PERIOD_MS: Final = 24 * 3_600_000
# Unless it is said, as much may come at once as a tenth of a second brings, and two messages where
# one comes in a second: a server wakes those who wait up to a tenth of a second late, and what came
# meanwhile must not be lost.
_BURSTS_PER_S: Final = 10
_RATE = re.compile(
    r"\s*(?P<count>[0-9]+)\s*/\s*(?P<span>[0-9]*\s*(?:ms|[smhd]))(?:\s+burst\s+(?P<burst>[0-9]+))?\s*"
)
_UNITS: Final = {86_400_000: "d", 3_600_000: "h", 60_000: "m", 1000: "s", 1: "ms"}


class Rate(NamedTuple):
    """So many messages in so many milliseconds, of which up to ``burst`` may come at once."""

    messages: int
    period_ms: int
    burst: int

    @classmethod
    def of(cls, text: str, what: str) -> Rate:
        """Parse "100/s", "10/m", "1/500ms" or "100/s burst 20"; raises InvalidInput."""
        match = _RATE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidInput(
                f"{what} must be a text such as '100/s', '10/m', '1/500ms' or '100/s burst 20', "
                f"not {text!r}"
            )
        span = match["span"].replace(" ", "")
        period_ms = check_int(
            parse_span(span if span[0].isdigit() else f"1{span}"),
            f"the span of {what} in milliseconds",
            1,
            MAX_PERIOD_MS,
        )
        count = check_int(int(match["count"]), f"the count of {what}", 1, MAX_RATE_COUNT)
        if count > 1000 * period_ms:
            raise InvalidInput(f"{what} must be at most {MAX_RATE_COUNT} a second, not {text!r}")
        burst = max(
            -(-count * 1000 // (period_ms * _BURSTS_PER_S)), 2 if count * 1000 >= period_ms else 1
        )
        if match["burst"] is not None:
            burst = int(match["burst"])
        return cls(count, period_ms, check_int(burst, f"the burst of {what}", 1, MAX_RATE_COUNT))

    def __str__(self) -> str:
        unit = max(ms for ms in _UNITS if self.period_ms % ms == 0)
        span = self.period_ms // unit
        return f"{self.messages}/{'' if span == 1 else span}{_UNITS[unit]} burst {self.burst}"


_Most: TypeAlias = Annotated[
    int | None,
    Param(
        "At most so many messages are with consumers at once.",
        least=1,
        most=MAX_IN_FLIGHT,
        metavar="N",
        word="INFLIGHT",
    ),
]
_MostPerKey: TypeAlias = Annotated[
    int | None,
    Param(
        "At most so many messages of one tag are with consumers at once.",
        least=1,
        most=MAX_IN_FLIGHT,
        metavar="N",
        word="INFLIGHTPERKEY",
    ),
]
_PerTime: TypeAlias = Annotated[
    str | None,
    Param(
        "How many are delivered per time, retries included: 100/s, '100/s burst 20', 10/m.",
        metavar="RATE",
    ),
]
_PerTimeAndKey: TypeAlias = Annotated[
    str | None, Param("The same for the messages of one tag.", metavar="RATE")
]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a group or a queue may deliver; None is without a limit.

    ``max_in_flight`` messages are delivered and not settled, and ``max_in_flight_per_key`` of one
    tag. ``rate`` is how many are delivered in a span of time, retries included, and
    ``rate_per_key`` how many of one tag: "100/s", or "100/s burst 20" when so many may come at
    once. Texts are spelled out, with their burst. Raises InvalidInput.
    """

    max_in_flight: _Most = None
    max_in_flight_per_key: _MostPerKey = None
    rate: _PerTime = None
    rate_per_key: _PerTimeAndKey = None

    def __post_init__(self) -> None:
        for name in ("max_in_flight", "max_in_flight_per_key"):
            value = getattr(self, name)
            if value is not None:
                check_int(value, name, 1, MAX_IN_FLIGHT)
        for name in ("rate", "rate_per_key"):
            text = getattr(self, name)
            if text is not None:
                object.__setattr__(self, name, str(Rate.of(text, name)))

    def __str__(self) -> str:
        said = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) is not None
        ]
        return ", ".join(said) or "none"

    def __bool__(self) -> bool:
        return self != NO_LIMITS

    @property
    def per_key(self) -> bool:
        """Whether anything is limited by tag."""
        return self.max_in_flight_per_key is not None or self.rate_per_key is not None

    def stored(self) -> str:
        """Return the text that the store keeps; empty when nothing is limited."""
        if not self:
            return ""
        words = (self.max_in_flight, self.max_in_flight_per_key)
        rates = (
            "" if text is None else "/".join(map(str, Rate.of(text, "rate")))
            for text in (self.rate, self.rate_per_key)
        )
        return ":".join([*("" if word is None else str(word) for word in words), *rates])

    @classmethod
    def of_stored(cls, text: bytes) -> Limits:
        """Read what the store keeps."""
        if not text:
            return NO_LIMITS
        most, most_of_key, *rates = text.decode().split(":")
        rate, rate_per_key = (
            str(Rate(*map(int, stored.split("/")))) if stored else None for stored in rates
        )
        return cls(int(most or 0) or None, int(most_of_key or 0) or None, rate, rate_per_key)


NO_LIMITS: Final = Limits()


def check_for_queue(limits: Limits) -> None:
    """Refuse limits that a queue cannot keep."""
    if limits.per_key:
        raise InvalidInput(
            "messages of a queue have no key, so a queue has no limits per key; use the group of a "
            "stream, where the tag is the key"
        )


def check_for_topic(limits: Limits) -> None:
    """Refuse limits that the group of a topic cannot keep."""
    if limits.max_in_flight is not None or limits.rate is not None:
        raise InvalidInput(
            "the group of a topic has limits per key only, because its partitions may be on "
            "several servers; give max_in_flight_per_key or rate_per_key, or use a stream"
        )


# ── Text or base64 ────────────────────────────────────────────────────────────────────────────────
# Bytes in JSON: text where they are UTF-8, else base64 with a mark beside it.
#
# A large text that JSON would spell more than twice as long, because it consists of control
# characters, is base64, too: so a value takes at most twice its bytes in a reply.
#
# A field ``x`` that holds base64 has ``x_encoding: "base64"`` beside it in its record, or plain
# ``encoding`` when it is the record's only field of bytes. A field without the mark is text.


Encoding: TypeAlias = Literal["base64"]
BASE64: Final[Encoding] = "base64"
# From this size on it is counted how long a text is in JSON.
_LARGE: Final = 4 << 20
# JSON spells these with two characters, and the other controls with six.
_SHORT: Final = b'"\\\b\t\n\f\r'
_LONG: Final = bytes(set(range(32)) - set(_SHORT))


def to_text(data: str | bytes) -> tuple[str, Encoding | None]:
    """Return data as text, and its encoding when it is not UTF-8, or JSON would make it long."""
    if len(data) >= _LARGE:
        raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        if _escapes(raw) > len(raw):
            return base64.b64encode(raw).decode(), BASE64
    if isinstance(data, str):
        return data, None
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), BASE64


def _escapes(data: bytes) -> int:
    """Return how many bytes more than it has a text takes in JSON."""
    long, short = (len(data) - len(data.translate(None, signs)) for signs in (_LONG, _SHORT))
    return 5 * long + short


def to_texts(values: Mapping[str, bytes]) -> tuple[dict[str, str], Encoding | None]:
    """Return values as text, or all of them as base64 when one of them is not UTF-8."""
    try:
        return {name: value.decode() for name, value in values.items()}, None
    except UnicodeDecodeError:
        encoded = {name: base64.b64encode(value).decode() for name, value in values.items()}
        return encoded, BASE64


def from_text(text: str, encoding: Encoding | None) -> str | bytes:
    """Return what ``to_text`` was given, text as str; raises ValueError for what is not base64."""
    if encoding is None:
        return text
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text[:200]!r} is not base64: {error}") from None
