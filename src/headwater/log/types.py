"""The records that the log returns to its users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Generic, NamedTuple, TypeAlias, TypeVar, cast

import msgspec

from headwater.errors import Undecodable
from headwater.kernel.codecs import D, or_raise, shown
from headwater.kernel.declaring import Param, Spelling
from headwater.kernel.failures import Cause
from headwater.kernel.headers import NO_HEADERS, Headers
from headwater.kernel.inputs import MAX_EXACT, MAX_MS, NO_LIMITS, Duration, Limits

Found = TypeVar("Found")

# A group or reader that was silent for this long is named if it blocks retention.
IDLE_MS = 24 * 3600 * 1000


class Message(msgspec.Struct, Generic[D], frozen=True, gc=False):
    """One message of a stream.

    ``attempt`` is 0 for a plain read; read through a group it counts the deliveries, from 1.
    ``data`` is the value as the codec of the stream decodes it; without a codec, its bytes.
    It is a Struct because reads make many of them: that takes a third of the time of a NamedTuple.
    Only a message that has headers takes room for them.
    """

    offset: int
    tag: str
    value: bytes
    time_ms: int
    attempt: int = 0

    @property
    def data(self) -> D:
        """The decoded value; raises Undecodable when it does not fit the codec."""
        return cast("D", self.value)

    @property
    def headers(self) -> Headers:
        """What was written beside the value, by name; an empty map when nothing was."""
        return NO_HEADERS


class HeadedMessage(Message[D], frozen=True, gc=False):
    """A message of a stream that has headers."""

    headers: Headers = NO_HEADERS

    def __repr__(self) -> str:
        return shown(self, "Message")


class DecodedMessage(Message[D], frozen=True, gc=True):
    """A message of a stream that has a codec."""

    decoded: D | Undecodable | None = None
    headers: Headers = NO_HEADERS

    def __repr__(self) -> str:
        return shown(self, "Message")

    @property
    def data(self) -> D:
        """The decoded value; raises Undecodable when it does not fit the codec."""
        return or_raise(self.decoded)


class Passage(NamedTuple, Generic[D]):
    """Messages from an offset on: everything below ``next`` was seen.

    ``gap`` is the first and last of the offsets that were evicted before they could be read.
    Offsets that are in neither were compacted away. ``last`` is where the stream ended.
    """

    messages: list[Message[D]]
    next: int
    gap: tuple[int, int] | None
    last: int


class Searched(NamedTuple, Generic[D]):
    """What a search found, and how far it came.

    It has looked at ``searched`` messages, all of those in ``low``..``high``. ``next`` is the
    offset to continue from in the same direction; None when there is no more. The stream held
    ``first``..``last``.
    """

    messages: list[Message[D]]
    searched: int
    low: int
    high: int
    next: int | None
    first: int
    last: int
    ms: int


class WithInfo(NamedTuple, Generic[Found]):
    """What a read found, and the ``first`` and ``last`` offset that the stream held at that moment.

    An empty stream has last = first - 1.
    """

    messages: list[Found]
    first: int
    last: int


class TopicWithInfo(NamedTuple, Generic[Found]):
    """What a read of a topic found, and which offsets each partition held, by partition.

    An empty partition has last = first - 1.
    """

    messages: list[Found]
    first: dict[int, int]
    last: dict[int, int]


class Placed(NamedTuple):
    """Where a message of a topic went."""

    partition: int
    offset: int


class Published(NamedTuple):
    """Where a publish is: its messages are in order from ``first`` to ``last``.

    Messages of others may be between them. ``first`` is above ``last`` when nothing was staged.
    """

    first: int
    last: int


class TopicMessage(msgspec.Struct, Generic[D], frozen=True, gc=False):
    """One message of a topic; offsets count within its partition.

    ``data`` and ``headers`` are as in Message.
    """

    partition: int
    offset: int
    tag: str
    value: bytes
    time_ms: int
    attempt: int = 0

    @property
    def data(self) -> D:
        """The decoded value; raises Undecodable when it does not fit the codec."""
        return cast("D", self.value)

    @property
    def headers(self) -> Headers:
        """What was written beside the value, by name; an empty map when nothing was."""
        return NO_HEADERS


class HeadedTopicMessage(TopicMessage[D], frozen=True, gc=False):
    """A message of a topic that has headers."""

    headers: Headers = NO_HEADERS

    def __repr__(self) -> str:
        return shown(self, "TopicMessage")


class DecodedTopicMessage(TopicMessage[D], frozen=True, gc=True):
    """A message of a topic that has a codec."""

    decoded: D | Undecodable | None = None
    headers: Headers = NO_HEADERS

    def __repr__(self) -> str:
        return shown(self, "TopicMessage")

    @property
    def data(self) -> D:
        """The decoded value; raises Undecodable when it does not fit the codec."""
        return or_raise(self.decoded)


class DeadLetter(NamedTuple):
    """A message that a group gave up; ``origin`` is its offset in the stream it came from.

    ``attempts`` is how often it was delivered, ``delivered_ms`` when for the first time, ``cause``
    why it failed for the last time; both are None when no failure was reported; workers report it.
    ``time_ms`` is when it was buried.
    """

    offset: int
    tag: str
    value: bytes
    time_ms: int
    origin: int
    attempts: int
    headers: Headers = NO_HEADERS
    delivered_ms: int | None = None
    cause: Cause | None = None

    @property
    def buried_ms(self) -> int:
        """When it became a dead letter."""
        return self.time_ms


class TopicDeadLetter(NamedTuple):
    """A message that a group gave up in a partition; the rest is as in DeadLetter."""

    partition: int
    offset: int
    tag: str
    value: bytes
    time_ms: int
    origin: int
    attempts: int
    headers: Headers = NO_HEADERS
    delivered_ms: int | None = None
    cause: Cause | None = None

    @property
    def buried_ms(self) -> int:
        """When it became a dead letter."""
        return self.time_ms


class Redriven(NamedTuple):
    """How many dead letters are redelivered, and how many the log no longer holds."""

    redriven: int
    gone: int

    def __str__(self) -> str:
        lost = f"; {self.gone} stay, because the log no longer holds their messages"
        return f"{self.redriven}{lost if self.gone else ''}"


class Retained(NamedTuple):
    """What retention did: messages evicted, and those kept because a reader still needs them."""

    evicted: int
    held: int
    held_by: str | None


MaxCount: TypeAlias = Annotated[
    int | None,
    Param("How many of the newest messages are kept.", least=0, most=MAX_EXACT, metavar="N"),
]
MaxAgeMs: TypeAlias = Annotated[
    Duration | None,
    Param("For how long messages are kept.", Spelling.SPAN, 0, MAX_MS, metavar="SPAN"),
]
MaxBytes: TypeAlias = Annotated[
    int | None,
    Param(
        "How many bytes of the newest messages are kept.",
        Spelling.SIZE,
        0,
        MAX_EXACT,
        metavar="SIZE",
    ),
]
MaxIdleMs: TypeAlias = Annotated[
    Duration | None,
    Param(
        "Groups and readers that were silent for longer are not waited for.",
        Spelling.SPAN,
        0,
        MAX_MS,
        metavar="SPAN",
    ),
]


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of a stream is kept; None is no limit.

    Groups and registered readers that were silent for longer than ``max_idle_ms`` are not waited
    for.
    """

    max_count: int | None = None
    max_age_ms: int | None = None
    max_bytes: int | None = None
    max_idle_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """Where a stream stands.

    ``first``..``last`` are the offsets that can be read; an empty stream has last = first - 1.
    ``length`` counts messages: it is smaller than the span when compaction left holes.
    ``last_time_ms`` is the time of the newest message: of its writer, if that brought times, and
    not necessarily of the last write. ``slowest`` is the group or registered reader that needs the
    lowest offset, ``slowest_next``: before it retention stops; it was seen ``slowest_idle_ms`` ago.
    ``abandoned`` groups were silent for so long that they are not waited for. Of ``bytes``,
    ``tail_bytes`` are not sealed yet. ``reader_lag_ms``: the age of what each reader needs next;
    ``reader_idle_ms``: how long it has been silent. ``missing``: ranges that the store has lost, as
    far as somebody has read there, the latest 16.
    """

    name: str
    first: int
    last: int
    length: int
    bytes: int
    nodes: int
    sealed: int
    created_ms: int
    last_time_ms: int
    retention: Retention
    auto_compact: bool
    readers: dict[str, int]
    groups: tuple[str, ...]
    slowest: str | None
    slowest_next: int | None
    slowest_idle_ms: int | None
    abandoned: int
    tail_bytes: int
    reader_lag_ms: dict[str, int]
    reader_idle_ms: dict[str, int]
    missing: tuple[tuple[int, int], ...] = ()

    @property
    def exists(self) -> bool:
        """Whether the stream was ever written."""
        return self.created_ms > 0

    @property
    def idle_holder(self) -> str | None:
        """The group or reader that blocks retention and was not seen for a day."""
        if self.retention == Retention() or (self.slowest_idle_ms or 0) < IDLE_MS:
            return None
        return self.slowest if (self.slowest_next or 0) <= self.last else None


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """The state of a group.

    ``next`` is the offset delivered next; everything below ``ack_offset`` is done. ``lag`` counts
    what was not delivered yet, ``pending`` what was and is not acknowledged. ``missed`` messages
    were evicted before the group had them; ``gaps`` are the latest ranges of those. ``dead`` counts
    dead letters, ``dead_letters`` is the stream in which they are. ``members`` are the latest 1000.
    ``seen_ms`` is the time of the last read; an ``abandoned`` group was silent for so long that
    retention does not wait for it until it reads again. ``new_since_ms`` is the time of the oldest
    message that was not delivered yet, ``pending_since_ms`` that of the oldest pending one, else
    None; of a sealed message, the newest time in its node. ``due`` of the pending messages wait to
    be redelivered, counted in at most 128 ranges. ``redelivered`` counts since the group began. A
    ``paused`` group delivers nothing, an ``ordered`` one keeps the order of tags. ``in_flight``
    messages are with members; None without such limits.
    """

    name: str
    next: int
    ack_offset: int
    pending: int
    lag: int
    missed: int
    gaps: tuple[tuple[int, int], ...]
    expired: int
    dead: int
    max_pending: int | None
    dead_letters: str | None
    waiting: int
    members: dict[str, int]
    created_ms: int
    seen_ms: int
    abandoned: bool
    new_since_ms: int | None
    pending_since_ms: int | None
    pending_ranges: int
    due: int
    redelivered: int
    paused: bool = False
    ordered: bool = False
    limits: Limits = NO_LIMITS
    in_flight: int | None = None
