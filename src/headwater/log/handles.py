"""Handles: what operations know of their object, its names and cached values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

from headwater.codecs import Coder
from headwater.errors import InvalidInput, UnknownGroup
from headwater.inputs import refuse_own_name
from headwater.kernel.declaring import Param, Shape
from headwater.log.entries import encoded_entries
from headwater.log.history import NOTHING_SEEN, SeenHistory
from headwater.log.keys import STREAMS, stream_key
from headwater.log.limits import MAX_OFFSET, check_count, check_name, check_offset
from headwater.log.runs import NOTHING_HELD, Held
from headwater.log.types import DecodedMessage, Message
from headwater.store.call import Argument, Call, Operation, Token

Start: TypeAlias = "Literal['first', 'last'] | int | dt.datetime"
Position: TypeAlias = Annotated[
    Start, Param("An offset, first or last.", Shape.POSITION, called="to")
]


class StreamHandle:
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

    def encoded(self, value: Any) -> bytes | str:
        """Return a value as it is written."""
        return cast("bytes | str", value) if self.coder is None else self.coder.encode(value)

    def encoded_entries(self, entries: Iterable[Any]) -> Iterable[Any]:
        """Return entries as they are written; see entries.py for their forms."""
        return entries if self.coder is None else encoded_entries(self.coder, entries)

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

    def unknown(self) -> UnknownGroup:
        """Return the error for a group that has never read."""
        return UnknownGroup(self.stream.name, self.name, topic=self.topic)
