"""What the log's functions reply: a type per function, with its fields in the header's order.

A reply that is read often is a list, and its type gives the places names; one of a few numbers is
read where it is asked for. A reply that describes
an object is name, value, name, value, ..., and ``record`` makes a user's record of it, by the names
and types of the record's fields: a new fact needs a line in Lua and a field of the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from headwater.kernel.inputs import Limits
from headwater.log.types import GroupInfo, Retention, StreamInfo

Reply: TypeAlias = Sequence[Any]
Record = TypeVar("Record", StreamInfo, GroupInfo, Retention)


class WriteReply(NamedTuple):
    """hw_stream_write. ``unsealed`` and ``hot`` count messages of the whole stream."""

    first: int
    last: int
    unsealed: int
    repeat: int
    hot: int
    history: bytes


class PublishReply(NamedTuple):
    """hw_stream_publish. ``noted``: the names of the stagings need not be sent again."""

    done: int
    first: int
    last: int
    unsealed: int
    repeat: int
    noted: int


class ReadReply(NamedTuple):
    """hw_stream_read. ``covered`` is the last offset that the nodes and entries reach."""

    first: int
    last: int
    sealed: int
    created: bytes
    covered: int
    nodes: list[Any]
    entries: list[Any]
    history: bytes


class SentNode(NamedTuple):
    """A node in a reply; ``blob`` is None when the caller said that it still has the node."""

    base: int
    last: int
    time: int
    version: int
    blob: bytes | None

    @classmethod
    def all_of(cls, nodes: Reply) -> Iterator[SentNode]:
        """Read the nodes of a reply."""
        each = iter(nodes)
        return map(cls, each, each, each, each, each)


class IndexedNode(NamedTuple):
    """A member of the index of nodes."""

    base: int
    messages: int
    size: int
    time: int
    newest: int
    version: int

    @classmethod
    def of(cls, member: bytes) -> IndexedNode:
        """Read a member."""
        return cls._make(map(int, member.split(b":")))


class NodeFacts(NamedTuple):
    """A node without its bytes, for clients that rewrite nodes."""

    base: int
    last: int
    messages: int
    size: int
    time: int
    version: int

    @classmethod
    def all_of(cls, nodes: Reply) -> list[NodeFacts]:
        """Read the nodes of a reply."""
        return [cls(*row) for row in rows(nodes, 6)]


class NodesReply(NamedTuple):
    """hw_stream_nodes."""

    first: int
    sealed: int
    created: bytes
    nodes: list[NodeFacts]

    @classmethod
    def of(cls, reply: Reply) -> NodesReply:
        """Read the reply."""
        first, sealed, created, nodes = reply
        return cls(first, sealed, created, NodeFacts.all_of(nodes))


class HotReply(NamedTuple):
    """hw_stream_hot. All nodes up to ``mark`` are cold."""

    first: int
    created: bytes
    mark: int
    nodes: list[NodeFacts]

    @classmethod
    def of(cls, reply: Reply) -> HotReply:
        """Read the reply."""
        first, created, mark, nodes = reply
        return cls(first, created, mark, NodeFacts.all_of(nodes))


class CutNode(NamedTuple):
    """A node with holes that an eviction would cut: messages from ``stay`` on are kept."""

    base: int
    last: int
    messages: int
    version: int
    stay: int


class EvictReply(NamedTuple):
    """hw_stream_evict. ``more``: 1: another call frees the rest; 2: the same call continues."""

    gone: int
    more: int
    cut: CutNode | None
    created: bytes

    @classmethod
    def of(cls, reply: Reply) -> EvictReply:
        """Read the reply."""
        gone, more, cut, created = reply
        return cls(gone, more, CutNode(*cut) if cut else None, created)


def record(kind: type[Record], reply: Reply, **known: Any) -> Record:
    """Make a record of a reply of names and values; ``known`` are fields that are not in it."""
    facts = {name.decode(): value for name, value in rows(reply, 2)}
    read = {f.name: _READERS[str(f.type)](facts[f.name]) for f in fields(kind) if f.name in facts}
    return kind(**known, **read)


def rows(flat: Reply, size: int) -> Iterator[tuple[Any, ...]]:
    """Cut a flat reply into rows of this many values."""
    return zip(*(iter(flat),) * size, strict=True)


# How the server formats a value, by the annotated type of the record's field.
_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "int": int,
    "bool": bool,
    "int | None": lambda number: None if number == b"" else int(number),
    "str | None": lambda text: text.decode() or None,
    "tuple[str, ...]": lambda texts: tuple(text.decode() for text in texts),
    "tuple[tuple[int, int], ...]": lambda numbers: tuple(rows(numbers, 2)),
    "dict[str, int]": lambda pairs: {name.decode(): int(n) for name, n in rows(pairs, 2)},
    "Limits": Limits.of_stored,
    "Retention": lambda reply: record(Retention, reply),
}


class ClaimedRange(NamedTuple):
    """Offsets that a group delivered together; ``attempt`` counts how often, from 1."""

    first: int
    last: int
    attempt: int

    @classmethod
    def all_of(cls, claims: Reply) -> list[ClaimedRange]:
        """Read the claims of a reply."""
        each = iter(claims)
        return list(map(cls, each, each, each))

    @classmethod
    def all_in(cls, head: bytes) -> list[ClaimedRange]:
        """Read the first line of what is in a blocked member's box."""
        return [cls(*map(int, claim.split(b":"))) for claim in head[1:].split(b",")]


class GroupReadReply(NamedTuple):
    """hw_group_read. ``due_ms``: when a message is due, -1 for never; ``boxed``: a claim.

    ``unfinished``: the server had too much to skip, and there may be more. ``first``:
    where the stream begins, if that was asked for. ``to_order``: in a group that keeps order, the
    first offset whose tag is to be noted, 0 when there is none; -1 in any other group.
    """

    claims: list[ClaimedRange]
    nodes: list[Any]
    entries: list[Any]
    created: bytes
    sealed: int
    last: int
    due_ms: int
    to_bury: int
    boxed: bytes
    unfinished: int
    first: int = 0
    to_order: int = -1

    @classmethod
    def of(cls, reply: Reply) -> GroupReadReply:
        """Read the reply."""
        return cls(ClaimedRange.all_of(reply[0]), *reply[1:])


class BuryReply(NamedTuple):
    """hw_group_bury. ``claims`` are the batch to write next; there is none when they are empty."""

    buried: int
    number: int
    claims: list[ClaimedRange]
    stream: str

    @classmethod
    def of(cls, reply: Reply) -> BuryReply:
        """Read the reply."""
        buried, number, claims, stream = reply
        return cls(buried, number, ClaimedRange.all_of(claims), stream.decode())


class DeadRange(NamedTuple):
    """Dead letters that are together from offset ``at``; first..last is where they came from."""

    at: int
    first: int
    last: int
    attempts: int

    @property
    def end(self) -> int:
        """The place behind the last of them."""
        return self.at + self.last - self.first + 1

    def oldest(self, count: int) -> DeadRange:
        """Return the first of them, at most so many."""
        return self._replace(last=min(self.last, self.first + count - 1))

    def newest(self, count: int) -> DeadRange:
        """Return the last of them, at most so many."""
        over = max(self.last - self.first + 1 - count, 0)
        return self._replace(at=self.at + over, first=self.first + over)


class DeadReply(NamedTuple):
    """hw_group_dead. ``stream`` holds the dead letters, '' when there are none.

    ``end`` is behind the newest of all that there are now.
    """

    stream: str
    ranges: list[DeadRange]
    end: int

    @classmethod
    def of(cls, reply: Reply) -> DeadReply:
        """Read the reply."""
        stream, ranges, end = reply
        return cls(stream.decode(), [DeadRange(*row) for row in rows(ranges, 4)], end)
