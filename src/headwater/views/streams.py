"""Views of streams: messages, groups, topics, readers, dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from headwater.log.replaying import Replayed
from headwater.log.types import (
    DeadLetter,
    GroupInfo,
    Message,
    Retention,
    Searched,
    StreamInfo,
    TopicDeadLetter,
    TopicMessage,
)
from headwater.views.record import Mark, View, copied, headers_field, mirror, text_field

StreamView = mirror("StreamView", StreamInfo)
GroupView = mirror("GroupView", GroupInfo, first={"stream": str}, names={"name": "group"})
RetentionView = mirror("RetentionView", Retention, first={"stream": str})
TopicRetentionView = mirror("TopicRetentionView", Retention, first={"topic": str})
TopicGroupView = mirror(
    "TopicGroupView",
    GroupInfo,
    first={"topic": str, "partition": int},
    names={"name": "group"},
)


class MessageView(View, frozen=True, kw_only=True):
    """One message; ``attempt`` is there when a group handed it out, ``partition`` in a topic."""

    partition: int | UnsetType = UNSET
    offset: int
    tag: str
    value: str
    encoding: Mark = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    headers_encoding: Mark = UNSET
    time_ms: int
    attempt: int | UnsetType = UNSET

    @classmethod
    def of(cls, message: Message | TopicMessage, partition: int | UnsetType = UNSET) -> MessageView:
        """Return the view of a message; one of the stream of a partition does not know that."""
        return cls(
            partition=message.partition if isinstance(message, TopicMessage) else partition,
            offset=message.offset,
            tag=message.tag,
            **text_field("value", message.value),
            **headers_field(message.headers),
            time_ms=message.time_ms,
            attempt=message.attempt or UNSET,
        )


class OffsetsView(View, frozen=True, kw_only=True):
    """A range of offsets, both ends included."""

    first: int
    last: int


class GoneView(View, frozen=True, kw_only=True):
    """Messages that a read asked for and that were evicted or compacted away."""

    partition: int | UnsetType = UNSET
    gone: OffsetsView


def messages_and_gaps(
    page: Iterable[Message | None], first: int, partition: int | UnsetType = UNSET
) -> Iterator[Message | GoneView]:
    """Yield what a read found from an offset on, each run of messages that are gone as one view."""
    gone_from = 0
    offset = first - 1
    for offset, message in enumerate(page, first):
        if message is None:
            gone_from = gone_from or offset
            continue
        if gone_from:
            yield GoneView(partition=partition, gone=OffsetsView(first=gone_from, last=offset - 1))
            gone_from = 0
        yield message
    if gone_from:
        yield GoneView(partition=partition, gone=OffsetsView(first=gone_from, last=offset))


def found_view(found: Message | TopicMessage | GoneView) -> MessageView | GoneView:
    """Return the view of what ``messages_and_gaps`` yields."""
    return found if isinstance(found, GoneView) else MessageView.of(found)


class TopicView(View, frozen=True, kw_only=True):
    """A topic: its sums over all partitions, and the stream of each."""

    name: str
    length: int
    bytes: int
    partitions: list[StreamView]  # type: ignore[valid-type]  # mirror makes it at run time

    @classmethod
    def of(cls, name: str, partitions: Sequence[StreamInfo]) -> TopicView:
        """Return the view of a topic, from what is known of the streams behind it, in order."""
        return cls(
            name=name,
            length=sum(stream.length for stream in partitions),
            bytes=sum(stream.bytes for stream in partitions),
            partitions=[StreamView.of(stream) for stream in partitions],
        )


class DeadLetterView(View, frozen=True, kw_only=True):
    """A message that a group gave up; ``origin`` is its offset in its stream or ``partition``."""

    partition: int | UnsetType = UNSET
    origin: int
    attempts: int
    tag: str
    value: str
    encoding: Mark = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    headers_encoding: Mark = UNSET
    delivered_ms: int | None
    buried_ms: int
    cause: str | None
    offset: int

    @classmethod
    def of(cls, letter: DeadLetter | TopicDeadLetter) -> DeadLetterView:
        """Return the view of a dead letter."""
        own = {
            **text_field("value", letter.value),
            **headers_field(letter.headers),
            "cause": letter.cause and str(letter.cause),
        }
        return cls(**copied(cls, letter, **own))


class WrittenView(View, frozen=True, kw_only=True):
    """Where one message was written."""

    stream: str
    offset: int


class LinesWrittenView(View, frozen=True, kw_only=True):
    """How many messages were written, and the offsets of the first and the last; None without."""

    stream: str
    written: int
    first: int | None
    last: int | None


class TopicCreatedView(View, frozen=True, kw_only=True):
    """A topic that is there, and how many partitions it has."""

    topic: str
    partitions: int


class TopicWrittenView(View, frozen=True, kw_only=True):
    """Where one message of a topic was written."""

    topic: str
    partition: int
    offset: int


class TopicLinesWrittenView(View, frozen=True, kw_only=True):
    """How many messages were written to a topic, and their offsets in each partition."""

    topic: str
    written: int
    partitions: dict[int, OffsetsView]


ReplayedView = mirror("ReplayedView", Replayed)


class SearchedView(View, frozen=True, kw_only=True):
    """What a search found: it looked at ``searched`` messages, all those in ``low``..``high``.

    The next search begins at ``next``, which is null at the end of the stream, which holds
    ``first``..``last``.
    """

    stream: str
    messages: list[MessageView]
    searched: int
    low: int
    high: int
    next: int | None
    first: int
    last: int
    ms: int

    @classmethod
    def of(cls, found: Searched[Any], stream: str) -> SearchedView:
        """Return the view of what a search found."""
        messages = [MessageView.of(message) for message in found.messages]
        return cls(**copied(cls, found, stream=stream, messages=messages))


class ReaderView(View, frozen=True, kw_only=True):
    """A reader outside the log: the offset that it needs next, and how many are from there on.

    ``lag_ms`` is the age of the oldest of them.
    """

    stream: str
    reader: str
    next: int
    lag: int
    lag_ms: int

    @classmethod
    def of(cls, stream: StreamInfo, reader: str) -> ReaderView:
        """Return the view of a registered reader of a stream."""
        position = stream.readers[reader]
        return cls(
            stream=stream.name,
            reader=reader,
            next=position,
            lag=lag_of(stream, position),
            lag_ms=stream.reader_lag_ms[reader],
        )


def lag_of(stream: StreamInfo, position: int) -> int:
    """Return how many messages a stream holds from a position on."""
    return max(stream.last + 1 - max(position, stream.first), 0)


class ReaderForgottenView(View, frozen=True, kw_only=True):
    """A reader that retention of some streams no longer waits for."""

    reader: str
    streams: list[str]
