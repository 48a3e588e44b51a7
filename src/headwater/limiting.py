"""Limits of a group or a queue: how many messages are in flight, and how many in a span of time.

They belong to the group or queue and are in the store, which enforces them when it delivers. So
they are the same for all members, and exact for any number of processes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Annotated, Final, NamedTuple, TypeAlias

from headwater.errors import InvalidInput
from headwater.inputs import check_int, parse_span
from headwater.kernel.declaring import Param

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
    Param("At most so many messages are with consumers.", least=1, most=MAX_IN_FLIGHT),
]
_PerTime: TypeAlias = Annotated[
    str | None, Param("How many are delivered per time: 100/s, 10/m or 100/s burst 20.")
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
    max_in_flight_per_key: _Most = None
    rate: _PerTime = None
    rate_per_key: _PerTime = None

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
