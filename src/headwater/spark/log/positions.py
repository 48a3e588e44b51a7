"""The options that say where a query begins and ends, and the offsets that they stand for.

``startingOffsets`` and ``endingOffsets`` take ``earliest``, ``latest``, an offset, a time as ISO
8601 with its zone, or a JSON object with one of these for every partition. ``startingTimestamp``
and ``endingTimestamp``, named as by Spark's Kafka source, take a time alone, also in milliseconds
since 1970. A time stands for the first message at or after it. The end is not read itself.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import Any, Literal, NamedTuple, TypeAlias

from headwater.errors import InvalidInput, OffsetOutOfRange
from headwater.inputs import MAX_EXACT, to_ms
from headwater.log.extents import Extent
from headwater.spark.engine.options import SourceOptions
from headwater.spark.log.target import StreamOrTopic

WORDS: tuple[Literal["earliest", "latest"], ...] = ("earliest", "latest")


class Time(NamedTuple):
    """A point in time, in milliseconds since 1970."""

    ms: int


Position: TypeAlias = "Literal['earliest', 'latest'] | int | Time"


class PositionOption(NamedTuple):
    """What an option says: one position for all partitions, or one for each of them."""

    option: str
    every: Position | None
    each: dict[int, Position]

    def of(self, partition: int) -> Position:
        """Return the position in a partition; raises InvalidInput when none is named."""
        position = self.each.get(partition, self.every)
        if position is None:
            raise InvalidInput(
                f"option {self.option!r} names no position for partition {partition}; name one for "
                "every partition of the topic"
            )
        return position

    def check(self, partitions: int) -> None:
        """Refuse positions of partitions that do not exist."""
        if strange := [place for place in self.each if place >= partitions]:
            raise InvalidInput(
                f"option {self.option!r} names partition {strange[0]}, but there are only "
                f"{partitions}, counted from 0"
            )

    def resolve(self, partition: int, target: StreamOrTopic, stream: str, extent: Extent) -> int:
        """Return the offset that is meant in one partition.

        Raises OffsetOutOfRange when the stream ends before it. An offset that was evicted is
        returned as it is: whether that is a loss depends on what else is asked for.
        """
        position = self.of(partition)
        if position == "earliest":
            return extent.first
        if position == "latest":
            return extent.last + 1
        if isinstance(position, Time):
            return target.offset_at(stream, position.ms)
        if position > extent.last + 1:
            raise OffsetOutOfRange(stream, f"option {self.option!r}", position, extent.last)
        return position


def position_option(options: SourceOptions, which: Literal["starting", "ending"]) -> PositionOption:
    """Read the options for the begin or the end of a query."""
    offsets, timestamp = f"{which}Offsets", f"{which}Timestamp"
    if offsets in options and timestamp in options:
        raise InvalidInput(f"give one of the options {offsets!r} and {timestamp!r}, not both")
    if (text := options.text(timestamp)) is not None:
        return PositionOption(timestamp, _time(text, timestamp), {})
    text = options.text(offsets, "earliest" if which == "starting" else "latest")
    assert text is not None
    if text.lstrip().startswith("{"):
        return PositionOption(offsets, None, _each(options.parsed(offsets), offsets))
    return PositionOption(offsets, _position(text.strip(), offsets), {})


def _each(found: Any, option: str) -> dict[int, Position]:
    each = {}
    for name, value in found.items():
        if not name.isascii() or not name.isdecimal():
            raise InvalidInput(f"option {option!r} has {name!r} where a partition's number belongs")
        text = value if isinstance(value, str) else json.dumps(value)
        each[int(name)] = _position(text, option)
    return each


def _position(text: str, option: str) -> Position:
    for word in WORDS:
        if text.lower() == word:
            return word
    if text.isascii() and text.isdecimal():
        if not 1 <= int(text) <= MAX_EXACT:
            raise InvalidInput(f"option {option!r} says {text}, but offsets count from 1")
        return int(text)
    try:
        return Time(to_ms(dt.datetime.fromisoformat(text)))
    except InvalidInput as error:
        raise InvalidInput(f"option {option!r}: {error}") from None
    except ValueError:
        raise InvalidInput(
            f"option {option!r} must be earliest, latest, an offset, a time such as "
            f"2026-01-31T12:00:00Z, or a JSON object of these by partition, not {text!r}"
        ) from None


def _time(text: str, option: str) -> Time:
    if text.isascii() and text.isdecimal():
        return Time(to_ms(int(text), f"option {option!r}"))
    position = _position(text, option)
    if not isinstance(position, Time):
        raise InvalidInput(
            f"option {option!r} must be milliseconds since 1970 or a time such as "
            f"2026-01-31T12:00:00Z, not {text!r}"
        )
    return position
