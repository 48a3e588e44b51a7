"""Which stream or topic a query means, where it begins and ends, and how much a batch reads."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from headwater.client import Headwater
from headwater.errors import InvalidInput, OffsetOutOfRange, UnknownStream, UnknownTopic
from headwater.kernel.inputs import MAX_EXACT, check_name, to_ms
from headwater.log.reading import Extent, extent, partitions_of
from headwater.spark.engine.connections import absolute_url, client
from headwater.spark.engine.options import SourceOptions
from headwater.store.many import together

if TYPE_CHECKING:
    from headwater.spark.archives.table import Contents


# ── Target ────────────────────────────────────────────────────────────────────────────────────────


# Most logs are read without an archive, and its modules are imported with the first use of one.


@dataclass(frozen=True, slots=True)
class StreamOrTopic:
    """A stream or topic of a store; goes to tasks, so it holds names only."""

    url: str = field(repr=False)
    name: str
    is_topic: bool
    # The place of an archive, which is read as the beginning of the log.
    archive: str | None = field(default=None, repr=False)

    @property
    def hw(self) -> Headwater:
        """This process's client of the store."""
        return client(self.url)

    @property
    def options(self) -> dict[str, str]:
        """The options by which a read or a write names it."""
        named = {"url": self.url, "topic" if self.is_topic else "stream": self.name}
        return named if self.archive is None else named | {"archive": self.archive}

    def streams(self) -> dict[int, str]:
        """Return the stream of each partition; a topic that was never made has none."""
        if not self.is_topic:
            return {0: self.name}
        partitions = self.hw.store.run(partitions_of(self.name))
        if not partitions and self.archive is not None:
            from headwater.spark.archives.reading import archived_partitions

            partitions = archived_partitions(self.archive, self.name)
        return {place: f"{self.name}/{place}" for place in range(partitions)}

    def require(self) -> None:
        """Raise UnknownStream or UnknownTopic unless it is there, be it without a message."""
        names = list(self.streams().values())
        if self.is_topic:
            if not names:
                raise self.unknown()
        elif not any(one.created for one in self.extents(names)):
            facts = self.hw.stream(self.name).info()
            if not (facts.exists or facts.groups or facts.readers):
                raise self.unknown()

    def unknown(self) -> UnknownStream | UnknownTopic:
        """Return the error for a target that is not there."""
        return UnknownTopic(self.name) if self.is_topic else UnknownStream(self.name)

    def extents(self, streams: Iterable[str]) -> list[Extent]:
        """Return the extents of streams with their archives; one round trip to each server."""
        names = list(streams)

        def look() -> list[Extent]:
            return self.hw.store.run(together(map(extent, names)))

        if self.archive is None:
            return look()
        from headwater.spark.archives.reading import whole_extents
        from headwater.spark.archives.table import Archive

        return whole_extents([Archive(self.archive, name) for name in names], look)

    def history(self, stream: str) -> Contents | None:
        """Return what is archived of a stream; None when there is nothing."""
        if self.archive is None:
            return None
        from headwater.spark.archives.table import Archive

        return Archive(self.archive, stream).load()

    def offset_at(self, stream: str, time_ms: int) -> int:
        """Return the offset of the first message at or after a time, archived or not."""
        in_log = self.hw.stream(stream).offset_at(time_ms)
        if self.archive is None:
            return in_log
        from headwater.spark.archives.reading import first_at
        from headwater.spark.archives.table import Archive

        return first_at(Archive(self.archive, stream), time_ms, in_log)


def target_of(options: SourceOptions) -> StreamOrTopic:
    """Find out what the options ``url``, ``stream`` and ``topic`` name. Raises InvalidInput."""
    stream, topic = options.text("stream"), options.text("topic")
    if stream is not None and topic is not None:
        raise InvalidInput("options 'stream' and 'topic' are both given; give one of them")
    name = stream or topic
    if name is None:
        raise InvalidInput("nothing to read is named; add .option('stream', ...) or 'topic'")
    check_name(name, "topic" if topic else "stream")
    return StreamOrTopic(
        absolute_url(options.text("url")), name, topic is not None, _place(options.text("archive"))
    )


def _place(archive: str | None) -> str | None:
    if archive is None:
        return None
    from headwater.spark.archives.table import absolute_place

    return absolute_place(archive)


def named_target(
    url: str | None,
    stream: str | None,
    topic: str | None,
    purpose: str,
    archive: str | None = None,
) -> StreamOrTopic:
    """Return the stream or topic that a job was given; raises InvalidInput unless it is one."""
    if (stream is None) == (topic is None):
        raise InvalidInput(f"name either a stream or a topic {purpose}")
    name = check_name(stream or topic or "", "stream" if stream else "topic")
    return StreamOrTopic(absolute_url(url), name, topic is not None, _place(archive))


# ── Positions ─────────────────────────────────────────────────────────────────────────────────────
# The options that say where a query begins and ends, and the offsets that they stand for.
#
# ``startingOffsets`` and ``endingOffsets`` take ``earliest``, ``latest``, an offset, a time as ISO
# 8601 with its zone, or a JSON object with one of these for each partition. ``startingTimestamp``
# and ``endingTimestamp`` take a time alone, also in milliseconds since 1970, and
# ``startingOffsetsByTimestamp`` and ``endingOffsetsByTimestamp`` a JSON object of times. A time
# stands for the first message at or after it. The end is not read itself.
#
# JSON objects may be written as for Spark's Kafka source: under the name of the topic, -2 for the
# earliest and -1 for the latest offset. A partition that is not named begins at the earliest, and
# ends at the latest offset.


WORDS: tuple[Literal["earliest", "latest"], ...] = ("earliest", "latest")
_KAFKAS_WORDS: dict[str, Literal["earliest", "latest"]] = {"-2": "earliest", "-1": "latest"}


class Time(NamedTuple):
    """A point in time, in milliseconds since 1970."""

    ms: int


Position: TypeAlias = "Literal['earliest', 'latest'] | int | Time"


class PositionOption(NamedTuple):
    """What an option says: one position for all partitions, or one for each of them."""

    option: str
    every: Position
    each: dict[int, Position]

    def of(self, partition: int) -> Position:
        """Return the position in a partition."""
        return self.each.get(partition, self.every)

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


def position_option(
    options: SourceOptions, which: Literal["starting", "ending"], name: str
) -> PositionOption:
    """Read the options for the begin or the end of a query over the stream or topic ``name``."""
    offsets, timestamp = f"{which}Offsets", f"{which}Timestamp"
    timestamps = f"{which}OffsetsByTimestamp"
    given = [option for option in (offsets, timestamp, timestamps) if option in options]
    if len(given) > 1:
        raise InvalidInput(f"give one of the options {given[0]!r} and {given[1]!r}, not both")
    every: Literal["earliest", "latest"] = "earliest" if which == "starting" else "latest"
    if (text := options.text(timestamp)) is not None:
        return PositionOption(timestamp, _time(text, timestamp), {})
    if timestamps in options:
        each = _each(options.parsed(timestamps), timestamps, name, _time)
        return PositionOption(timestamps, every, each)
    text = options.text(offsets, every)
    assert text is not None
    if text.lstrip().startswith("{"):
        return PositionOption(
            offsets, every, _each(options.parsed(offsets), offsets, name, _kafkas)
        )
    return PositionOption(offsets, _position(text.strip(), offsets), {})


def _each(
    found: Any, option: str, topic: str, position_of: Callable[[str, str], Position]
) -> dict[int, Position]:
    """Read a JSON object of partitions, be it under the name of the topic."""
    if not isinstance(found, dict):
        raise InvalidInput(f"option {option!r} must be a JSON object of partitions")
    if found and all(isinstance(value, dict) for value in found.values()):
        if list(found) != [topic]:
            raise InvalidInput(
                f"option {option!r} names {', '.join(map(repr, found))}; only {topic!r} is read"
            )
        found = found[topic]
    each = {}
    for name, value in found.items():
        if not name.isascii() or not name.isdecimal():
            raise InvalidInput(f"option {option!r} has {name!r} where a partition's number belongs")
        text = value if isinstance(value, str) else json.dumps(value)
        each[int(name)] = position_of(text, option)
    return each


def _kafkas(text: str, option: str) -> Position:
    return _KAFKAS_WORDS.get(text) or _position(text, option)


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


# ── Trigger limits ────────────────────────────────────────────────────────────────────────────────
# How much a micro-batch of a streaming query reads.


class TriggerLimits(NamedTuple):
    """How many offsets a micro-batch has: at most, and at least unless ``delay_ms`` have passed."""

    most: int | None
    least: int | None
    delay_ms: int
