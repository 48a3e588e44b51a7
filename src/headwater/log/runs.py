"""Runs: the nodes and tail entries of a reply, in order of offset, from which messages are made.

A run is what is together: a packed batch, or plain entries side by side. Python objects or Arrow
columns are only made of the rows that were asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar
from zlib import crc32

import pyarrow as pa

from headwater.errors import UnreadableNode
from headwater.headers import Headers
from headwater.log import arrow_compute as pc
from headwater.log import node
from headwater.log.group_replies import GroupReadReply
from headwater.log.replies import ReadReply, SentNode
from headwater.log.types import HeadedMessage, Message

Look = TypeVar("Look")

SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("tag", pa.string(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("time", pa.timestamp("ms", "UTC"), nullable=False),
    ]
)
# The same with headers, as they are stored.
SCHEMA_WITH_HEADERS = SCHEMA.append(node.HEADERS)
_NONE_HEADED: Mapping[int, bytes] = MappingProxyType({})


class Run(Protocol):
    """Messages that are together at the offsets base..last."""

    @property
    def base(self) -> int:
        """The first offset."""

    @property
    def last(self) -> int:
        """The last offset."""

    @property
    def headed(self) -> bool:
        """Whether a message may have headers."""

    def cut(self, first: int, last: int) -> Run:
        """Return the part that is in first..last."""

    def hole_to(self, offset: int) -> int:
        """Return the last of the empty offsets that follow ``offset``, or ``offset`` itself."""

    def messages(self, attempt: int = 0) -> list[Message]:
        """Return all rows as Python messages."""

    def to_arrow(self, *, headers: bool = False) -> pa.RecordBatch:
        """Return all rows as a record batch of SCHEMA, or of SCHEMA_WITH_HEADERS when asked."""


class PackedRun(NamedTuple):
    """A packed batch; ``time`` is that of every message when the batch has no times."""

    base: int
    last: int
    time: int
    batch: pa.RecordBatch

    @property
    def sparse(self) -> bool:
        """Whether offsets are missing in it."""
        return "offset" in self.batch.schema.names

    @property
    def headed(self) -> bool:
        """See Run."""
        return "headers" in self.batch.schema.names

    def cut(self, first: int, last: int) -> PackedRun:
        """See Run."""
        if first <= self.base and self.last <= last:
            return self
        first, last = max(first, self.base), min(last, self.last)
        if self.sparse:
            offsets = self.batch.column("offset")
            keep = pc.and_(pc.greater_equal(offsets, first), pc.less_equal(offsets, last))
            return PackedRun(first, last, self.time, self.batch.filter(keep))
        part = self.batch.slice(first - self.base, last - first + 1)
        return PackedRun(first, last, self.time, part)

    def hole_to(self, offset: int) -> int:
        """See Run."""
        if not self.sparse:
            return offset
        offsets = self.batch.column("offset").to_pylist()
        place = bisect_right(offsets, offset)
        return offsets[place] - 1 if place < len(offsets) else self.last

    def messages(self, attempt: int = 0) -> list[Message]:
        """See Run."""
        batch = self.batch
        names = batch.schema.names
        offsets = (
            batch.column("offset").to_pylist() if self.sparse else range(self.base, self.last + 1)
        )
        times = batch.column("time").to_pylist() if "time" in names else repeat(self.time)
        tags, values = batch.column(0).to_pylist(), batch.column(1).to_pylist()
        if self.headed:
            headers = batch.column("headers").to_pylist()
            return list(map(message_of, offsets, tags, values, times, repeat(attempt), headers))
        attempts = (repeat(attempt),) if attempt else ()
        made: Callable[..., Message] = Message
        return list(map(made, offsets, tags, values, times, *attempts))

    def to_arrow(self, *, headers: bool = False) -> pa.RecordBatch:
        """See Run; tags and values are not copied."""
        batch = self.batch
        offsets = batch.column("offset") if self.sparse else pa.arange(self.base, self.last + 1)
        kind = SCHEMA.field("time").type
        if "time" in batch.schema.names:
            times = batch.column("time").view(kind)
        else:
            times = pa.repeat(pa.scalar(self.time, kind), batch.num_rows)
        columns = [offsets, *batch.columns[:2], times]
        if not headers:
            return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        columns.append(
            batch.column("headers")
            if self.headed
            else pa.repeat(pa.scalar(b"", pa.binary()), batch.num_rows)
        )
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA_WITH_HEADERS)


class PlainRun(NamedTuple):
    """Messages that were written one by one; ``headers`` of those that have some, by offset."""

    base: int
    last: int
    rows: list[tuple[int, str, bytes, int]]
    headers: Mapping[int, bytes] = _NONE_HEADED

    @property
    def headed(self) -> bool:
        """See Run."""
        return bool(self.headers)

    def cut(self, first: int, last: int) -> PlainRun:
        """See Run."""
        first, last = max(first, self.base), min(last, self.last)
        rows = self.rows[first - self.base : last - self.base + 1]
        return PlainRun(first, last, rows, self.headers)

    def hole_to(self, offset: int) -> int:
        """See Run; plain messages have no holes."""
        return offset

    def messages(self, attempt: int = 0) -> list[Message]:
        """See Run."""
        if self.headers:
            return [message_of(*row, attempt, self.headers.get(row[0], b"")) for row in self.rows]
        return [Message(*row, attempt) for row in self.rows]

    def to_arrow(self, *, headers: bool = False) -> pa.RecordBatch:
        """See Run."""
        columns = list(zip(*self.rows, strict=True))
        schema = SCHEMA
        if headers:
            columns.append(tuple(self.headers.get(row[0], b"") for row in self.rows))
            schema = SCHEMA_WITH_HEADERS
        return pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
            schema=schema,
        )


def message_of(
    offset: int, tag: str, value: bytes, time: int, attempt: int, headers: bytes
) -> Message:
    """Return a message; ``headers`` are as they are stored, empty for none."""
    if not headers:
        return Message(offset, tag, value, time, attempt)
    return HeadedMessage(offset, tag, value, time, attempt, Headers.stored(headers))


class Held(NamedTuple):
    """The cached node, the one that was read last: reading it in parts fetches and opens it once.

    ``last`` is its last offset, after which the next node begins.
    """

    created: bytes
    base: int
    last: int
    version: int
    batch: pa.RecordBatch | None

    @property
    def name(self) -> str:
        """How the server knows it."""
        return f"{self.created.decode()}:{self.base}:{self.version}" if self.created else ""


NOTHING_HELD = Held(b"", -1, -1, 0, None)


def open_runs(reply: ReadReply | GroupReadReply, held: Held, stream: str) -> tuple[list[Run], Held]:
    """Open what a read brought; returns the runs in order of offset, and the node to cache.

    A tail entry may be sealed in part: only what is above ``sealed`` counts of it. Raises
    UnreadableNode when something is damaged; ``stream`` is the name for it.
    """
    runs: list[Run] = []
    had, created = held, reply.created
    for sent in SentNode.all_of(reply.nodes):
        base, last, time, version, blob = sent
        if blob is not None:
            held = Held(created, base, last, version, open_node(sent, stream))
        elif had[:4] == (created, base, last, version):
            held = had
        else:
            raise UnreadableNode("its bytes are missing", stream, base)
        runs.append(PackedRun(base, last, time, held.batch))
    runs.sort(key=lambda run: run.base)
    above = reply.sealed + 1
    runs += [run.cut(above, run.last) for run in open_entries(reply.entries, stream)]
    return runs, held


def missing(runs: Iterable[Run | SentNode], first: int, last: int) -> list[tuple[int, int]]:
    """Return the ranges of first..last that none of the runs, which ascend, holds: they are lost.

    Nodes and entries follow each other without a gap: one that compaction emptied keeps its place.
    """
    found: list[tuple[int, int]] = []
    at = first
    for run in runs:
        if at > last:
            break
        if run.base > at:
            found.append((at, min(run.base - 1, last)))
        at = max(at, run.last + 1)
    if at <= last:
        found.append((at, last))
    return found


def open_node(sent: SentNode, stream: str) -> pa.RecordBatch:
    """Open a node that the index lists; raises UnreadableNode when the two do not agree."""
    # A node from which compaction removed everything has no bytes.
    return _looked_at(sent, stream, node.unpack) if sent.blob else node.EMPTY


def check_node(sent: SentNode, stream: str) -> None:
    """Do as open_node does, without opening it."""
    _looked_at(sent, stream, node.check)


def _looked_at(sent: SentNode, stream: str, look: Callable[[bytes], Look]) -> Look:
    base, last, time, version, blob = sent
    try:
        seen = look(blob or b"")
    except UnreadableNode as error:
        raise UnreadableNode(error.why, stream, base) from None
    if not node.belongs(blob or b"", base, last, time, version):
        raise UnreadableNode("it is damaged (it is not what the index lists)", stream, base)
    return seen


def is_partial(fields: list[bytes]) -> bool:
    """Return whether an entry of the tail is incomplete without the next one."""
    return fields[-2] == b"m"


def is_elsewhere(fields: list[bytes]) -> bool:
    """Return whether an entry of the tail stands for a node that is in its place already."""
    return fields[0] == b"n" and fields[4:5] != [b"d"]


def open_entries(entries: Iterable[Any], stream: str = "") -> list[Run]:
    """Open tail entries; plain ones that are side by side become one run.

    Raises UnreadableNode for one that is damaged. Those of older writers have no checksum.
    """
    runs: list[Run] = []
    rows: list[tuple[int, str, bytes, int]] = []
    headed: dict[int, bytes] = {}
    offset = 0
    try:
        for entry_id, fields in entries:
            offset = int(entry_id[2:])
            if fields[0] == b"k":
                if rows and offset != rows[-1][0] + 1:
                    runs.append(PlainRun(rows[0][0], rows[-1][0], rows, headed))
                    rows = []
                tag, value = fields[1], fields[3]
                time_digits, _, check = fields[5].partition(b"-")
                time = int(time_digits)
                # The same as node.checksum, without a call for each message.
                crc = crc32(value, crc32(tag, len(tag)))
                if check and (crc + time + 3 * offset + 5 - int(check)) % node.CHECK_PRIME:
                    raise UnreadableNode(node.DAMAGED)
                rows.append((offset, tag.decode(), value, time))
            elif fields[0] == b"h":
                if rows and offset != rows[-1][0] + 1:
                    runs.append(PlainRun(rows[0][0], rows[-1][0], rows, headed))
                    rows = []
                rows.append(_open_headed(offset, fields))
                headed[offset] = fields[1]
            else:
                if rows:
                    runs.append(PlainRun(rows[0][0], rows[-1][0], rows, headed))
                    rows = []
                runs.append(_open_packed(offset, fields))
    except UnreadableNode as error:
        raise UnreadableNode(error.why, stream, offset) from None
    except (ValueError, IndexError):
        raise UnreadableNode(node.DAMAGED, stream, offset) from None
    if rows:
        runs.append(PlainRun(rows[0][0], rows[-1][0], rows, headed))
    return runs


def _open_headed(offset: int, fields: list[bytes]) -> tuple[int, str, bytes, int]:
    headers, tag, value, checked = fields[1], fields[3], fields[5], fields[7]
    time_digits, _, check = checked.partition(b"-")
    time = int(time_digits)
    crc = node.message_crc(tag, value, headers)
    if int(check) != node.checksum(crc, offset, time):
        raise UnreadableNode(node.DAMAGED)
    return offset, tag.decode(), value, time


def _open_packed(offset: int, fields: list[bytes]) -> PackedRun:
    kind, digits, _, checked, _, blob = fields[:6]
    count = int(digits)
    time_digits, _, check = checked.partition(b"-")
    time = int(time_digits)
    batch = node.unpack(blob)
    crc = node.crc_of(blob)
    if kind != b"n" or batch.num_rows != count:
        raise UnreadableNode(node.DAMAGED)
    if check and int(check) != node.checksum(crc, offset, time, count):
        raise UnreadableNode(node.DAMAGED)
    return PackedRun(offset - count + 1, offset, time, batch)
