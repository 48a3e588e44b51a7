"""Handles: what operations know of their object; and entries, the forms of messages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeAlias, TypeVar, cast

import pyarrow as pa

from headwater.errors import HeadwaterError, InvalidInput, LostFuture, UnknownGroup
from headwater.kernel.codecs import Coder
from headwater.kernel.declaring import Param, Spelling
from headwater.kernel.headers import Carried, GivenHeaders, encode_headers
from headwater.kernel.inputs import MAX_EXACT, Limits, refuse_own_name
from headwater.log import node
from headwater.log.keys import (
    MAX_OFFSET,
    STREAMS,
    check_count,
    check_name,
    check_offset,
    stream_key,
)
from headwater.log.node import NOTHING_HELD, Held
from headwater.log.types import DeadLetter, DecodedMessage, Message, TopicDeadLetter, TopicMessage
from headwater.store.call import Argument, Call, Operation, Token

# The forms in which messages of a batch are given.
#
# Each is a pair of tag and value, a triple with headers, or a message that was read, which is
# copied with its headers.


E = TypeVar("E")
WholeMessage: TypeAlias = "Message[E] | TopicMessage[E] | DeadLetter | TopicDeadLetter"
Entry: TypeAlias = (
    "tuple[str, E | str] | tuple[str, E | str, GivenHeaders | None] | WholeMessage[E]"
)
_WHOLE = (Message, TopicMessage, DeadLetter, TopicDeadLetter)
_FORMS = "entries must be (tag, value) pairs or (tag, value, headers)"

_NOT_STRINGS = f"{_FORMS}, not strings; write one message as [(tag, value)]"


def batch_of_entries(entries: Iterable[Any], *, carry: bool) -> pa.RecordBatch:
    """Turn entries into a batch of a node's shape; raises InvalidInput.

    carry: with the headers that go with every message, if there are any. Not for a write with a
    sequence: a repeat must be equal to the first attempt, which may be of another trace.
    """
    given = _listed(entries)
    if carry and Carried.context is not None:
        given = _with_carried(given)
    if given and isinstance(given[0], str):
        # A str of two characters would pass for a pair.
        raise InvalidInput(_NOT_STRINGS)
    tags: list[Any] = []
    values: list[Any] = []
    try:
        # To unzip them takes three times as long.
        for tag, value in given:
            tags.append(tag)
            values.append(value)
    except (TypeError, ValueError):
        triples = list(map(_triple, given))
        headers = [encode_headers(triple[2]) for triple in triples]
        return node.batch_of(
            [one[0] for one in triples], [one[1] for one in triples], None, None, headers
        )
    return node.batch_of(tags, values)


def _with_carried(entries: list[Any]) -> list[Any]:
    return [
        entry if isinstance(entry, (*_WHOLE, str, bytes)) else _carrying(_triple(entry))
        for entry in entries
    ]


def _carrying(triple: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    tag, value, headers = triple
    return tag, value, Carried.beside(headers)


def encoded_entries(coder: Coder[Any], entries: Iterable[Any]) -> Iterable[Any]:
    """Return entries with their values encoded; messages that were read stay as they are."""
    given = _listed(entries)
    encode = coder.encode
    try:
        return [(tag, encode(value)) for tag, value in given]
    except HeadwaterError:
        raise
    except (TypeError, ValueError):
        return [
            entry if isinstance(entry, _WHOLE) else _with_value(_triple(entry), encode)
            for entry in given
        ]


def _listed(entries: Any) -> list[Any]:
    if not isinstance(entries, Iterable):
        raise InvalidInput(f"{_FORMS}, not {entries!r}")
    if isinstance(entries, Mapping):
        raise InvalidInput(f"{_FORMS}, not a dict, which yields its keys; use dict.items()")
    return entries if isinstance(entries, list) else list(entries)


def _with_value(triple: tuple[Any, Any, Any], encode: Any) -> tuple[Any, Any, Any]:
    tag, value, headers = triple
    return tag, encode(value), headers


def _triple(entry: Any) -> tuple[Any, Any, Any]:
    if isinstance(entry, _WHOLE):
        return entry.tag, entry.value, entry.headers
    if isinstance(entry, str | bytes):
        raise InvalidInput(_NOT_STRINGS)
    try:
        tag, value, *rest = entry
        (headers,) = rest or (None,)
    except (TypeError, ValueError):
        raise InvalidInput(_FORMS) from None
    return tag, value, headers


# Noticing that the store has lost what was read or written before.
#
# A failover or a crash may lose the newest messages, and then other messages get their offsets.
# The stream keeps from which offset on each server process has written it
# (lua/shared/12-history.lua). A handle remembers that together with how far it has come. When both
# change in a way that only a loss explains, LostFuture names the offsets.


# How many starts a history keeps; as in the server's function.
MOST_STARTS: Final = 16


class SeenHistory(NamedTuple):
    """What a handle knows: the stream and its history, and the offset that it has reached.

    ``lost`` is the first offset of a loss that was reported, 0 without one. ``woken`` is how far a
    blocked read has come since: it is woken by messages alone, and does not know their history.
    """

    created: bytes = b""
    history: bytes = b""
    upto: int = 0
    lost: int = 0
    woken: int = 0

    def text(self) -> str:
        """Return stream and history in one text, to be kept beside a position."""
        return f"{self.created.decode()} {self.history.decode()}".rstrip()

    @classmethod
    def of_text(cls, text: str, upto: int) -> Self:
        """Return what is known at a position beside which a text was kept."""
        created, _, history = text.encode().partition(b" ")
        return cls(created, history, upto)


NOTHING_SEEN = SeenHistory()


def diverged_at(known: bytes, found: bytes) -> int:
    """Return the first offset from which on two histories differ; 0 when they do not."""
    if known == found:
        return 0
    before, now = (dict(start.split(b":") for start in text.split()) for text in (known, found))
    # A full history has lost its oldest starts, which says nothing.
    full = (starts for starts in (before, now) if len(starts) >= MOST_STARTS)
    oldest = max((min(map(int, starts)) for starts in full), default=0)
    tokens = [token for token in before.keys() ^ now.keys() if int(token) >= oldest]
    return min((int(before.get(token) or now[token]) for token in tokens), default=0)


def first_lost(known: bytes, upto: int, found: bytes, last: int) -> int:
    """Return the first lost offset for a client that had reached ``upto``; 0 for none.

    ``known`` is the history as it was then, ``found`` the one of a stream that ends at ``last``.
    """
    starts = (diverged_at(known, found), last + 1)
    return min((start for start in starts if 0 < start <= upto), default=0)


def go_on(
    seen: SeenHistory, stream: str, at: int, upto: int, created: bytes, history: bytes, last: int
) -> tuple[SeenHistory, LostFuture | None]:
    """Return what is known after a look at a stream, and the error if messages were lost.

    ``at`` is where the caller wants to continue, ``upto`` how far it has come with that, and
    ``last`` where the stream ends. After a loss the error stays until the caller goes back to its
    begin.
    """
    if created != seen.created:
        return SeenHistory(created, history, upto), None
    if seen.lost:
        if at > seen.lost:
            return seen, LostFuture(stream, seen.lost, at - 1)
        return SeenHistory(created, history, upto), None
    reached = max(seen.upto, seen.woken)
    # What woke a read may have been written after the server changed: that is not a loss.
    known = reached if last < reached else seen.upto
    if first := first_lost(seen.history, known, history, last):
        return SeenHistory(created, history, first - 1, first), LostFuture(stream, first, reached)
    return SeenHistory(created, history, max(reached, upto)), None


T = TypeVar("T")
R = TypeVar("R")
# Makes one result of those of all partitions.
Merge: TypeAlias = Callable[[Collection[R]], R]


def total(parts: Collection[int]) -> int:
    """Return the sum over all partitions."""
    return sum(parts)


Start: TypeAlias = "Literal['first', 'last'] | int | dt.datetime"
Position: TypeAlias = Annotated[
    Start, Param("An offset, first or last.", Spelling.POSITION, called="to")
]
TimeMs: TypeAlias = Annotated[
    int | dt.datetime, Param("Milliseconds since 1970.", Spelling.MS, 0, MAX_EXACT)
]
ReaderName: TypeAlias = Annotated[str, Param("Name of the reader.")]
ProducerName: TypeAlias = Annotated[str, Param("Name of the producer.")]


class CodedHandle:
    """What encodes the values of a stream or a topic; ``coder`` does so, if there is one."""

    __slots__ = ()
    coder: Coder[Any] | None

    def encoded(self, value: Any) -> bytes | str:
        """Return a value as it is written."""
        return cast("bytes | str", value) if self.coder is None else self.coder.encode(value)

    def encoded_entries(self, entries: Iterable[Any]) -> Iterable[Any]:
        """Return entries as they are written; see above for their forms."""
        return entries if self.coder is None else encoded_entries(self.coder, entries)


class StreamHandle(CodedHandle):
    """A stream as its operations see it.

    ``held`` is the node that was read last; other threads change it at any time, so an operation
    looks at it once, before it asks. ``hot`` is how many messages were in hot nodes when it was
    written last. ``registered`` is shared by all handles of a client: the names that it has added
    to the registry. ``seen`` is how far it was read, ``wrote`` how far a producer wrote, and in
    which history. ``coder`` encodes and decodes values, if there is one.
    """

    __slots__ = ("coder", "held", "hot", "key", "name", "registered", "seen", "wrote")

    def __init__(self, name: str, registered: set[str], coder: Coder[Any] | None = None) -> None:
        self.key = stream_key(name)
        self.coder = coder
        self.name = name
        self.held: Held = NOTHING_HELD
        self.hot = 0
        self.registered = registered
        self.seen: SeenHistory = NOTHING_SEEN
        self.wrote: SeenHistory = NOTHING_SEEN

    def register(self) -> Operation[None]:
        """Add this stream to the registry, once per client."""
        if self.name not in self.registered:
            yield Call("hw_registry_add", STREAMS, (self.name,), repeatable=True)
            self.registered.add(self.name)

    def across(self, _: Merge[R], act: Callable[[StreamHandle], Operation[R]]) -> Operation[R]:
        """Do what ``act`` does; a topic does it in each partition, and merges what that returns."""
        return act(self)

    def decoded(self, messages: list[Any]) -> list[Any]:
        """Return messages with their values decoded; None stays None."""
        return messages if self.coder is None else list(map(self._decoded_message, messages))

    def _decoded_message(self, message: Message | None) -> Message[Any] | None:
        if message is None or self.coder is None:
            return message
        data = self.coder.decode(message.value, "message", message.offset, "of stream", self.name)
        made: Callable[..., Message[Any]] = DecodedMessage
        return made(
            message.offset,
            message.tag,
            message.value,
            message.time_ms,
            message.attempt,
            data,
            message.headers,
        )


def check_start(start: Start) -> None:
    """Accept 'first', 'last', an offset or a datetime."""
    if isinstance(start, dt.datetime) or start in ("first", "last"):
        return
    if isinstance(start, str):
        raise InvalidInput(f"start must be 'first', 'last', an offset or a datetime, not {start!r}")
    check_offset(start, "start")


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """What may be asked of a group: where it starts when it is new, and how it delivers.

    ``Stream.group`` says what each option means. None leaves an option as the group has it.
    """

    start: Start = "first"
    max_pending: int | None = None
    dead_letters: bool | str | None = None
    ordered: bool = False

    def __post_init__(self) -> None:
        check_start(self.start)
        if self.max_pending is not None:
            check_count(self.max_pending, "max_pending", MAX_OFFSET)

    def words(self, default_letters: str) -> tuple[Argument, Argument, Argument]:
        """Return the options for the server; ``default_letters`` is the stream if none is named."""
        letters = self.dead_letters
        if letters is None or isinstance(letters, str):
            stream = letters or ""
        else:
            stream = default_letters if letters else "-"
        return (str(self.start), "" if self.max_pending is None else self.max_pending, stream)


AS_IT_IS: Final = GroupOptions()


@dataclass(slots=True)
class GroupHandle:
    """A group as its operations see it: its names, and what its owner asked for.

    ``option_words`` are the options as each read sends them. ``topic`` is the topic of which the
    stream is a partition, where the group is meant as one of all partitions.
    """

    stream: StreamHandle
    name: str
    member: str
    options: GroupOptions = AS_IT_IS
    topic: str | None = None
    option_words: tuple[Argument, Argument, Argument] = field(init=False)
    waiters: list[str] = field(default_factory=list, init=False)
    reads: Iterator[int] = field(default_factory=lambda: count(1), init=False)
    # In a group that keeps order: from where on tags are to be noted, 0 when nothing is there; and
    # how many messages this member has noted and not taken.
    to_order: int = field(default=0, init=False)
    ahead: int = field(default=0, init=False)
    # Whether a read has made the group since it was opened or removed by this handle.
    begun: bool = field(default=False, init=False)
    # Returns the offsets that this member has and orders itself.
    owned: Callable[[], list[int]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        check_name(self.name, "group")
        check_name(self.member, "member")
        self.option_words = self.options.words(f"{self.stream.name}.{self.name}.dead")
        if self.options.dead_letters not in (None, False):
            letters = check_name(str(self.option_words[2]), "stream of dead letters")
            refuse_own_name(letters, "stream of dead letters")

    @property
    def key(self) -> str:
        """The key of the stream."""
        return self.stream.key

    def start_at(self, offset: int) -> None:
        """Let a new group start at an offset instead of the time that was given."""
        self.options = replace(self.options, start=offset)
        self.option_words = (str(offset), *self.option_words[1:])

    def keep_order(self, owned: Callable[[], list[int]] | None) -> None:
        """Have the group keep the order of each tag, with the next read."""
        self.options = replace(self.options, ordered=True)
        self.owned = owned

    def take_waiter(self) -> Operation[str]:
        """Return a name to wait under; put it back once nothing can come for it any more."""
        try:
            return self.waiters.pop()
        except IndexError:
            return f"{self.member}.{(yield Token())}"

    def settle(
        self, given: Any, act: Callable[[GroupHandle, Any], Operation[int]], *_: Any
    ) -> Operation[int]:
        """Do to messages what ``act`` does; a group over a topic does it partition by partition."""
        return act(self, given)

    def across(self, _: Merge[R], act: Callable[[GroupHandle], Operation[R]]) -> Operation[R]:
        """Do to the group what ``act`` does, as StreamHandle.across."""
        return act(self)

    def check_limits(self, limits: Limits) -> None:
        """Refuse limits that cannot be enforced; a group of one stream enforces all."""

    def unknown(self) -> UnknownGroup:
        """Return the error for a group that has never read."""
        return UnknownGroup(self.stream.name, self.name, topic=self.topic)
