"""What must be true of the nodes of a stream: they and their index agree, one to one, without gaps.

Each node is read, and its checksum compared; the counters of the stream are the sums of the index.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, NamedTuple
from zlib import crc32

from headwater.errors import UnreadableNode
from headwater.headers import check_stored
from headwater.log.keys import index_key, nodes_key, stream_key
from headwater.log.replies import IndexedNode, SentNode
from headwater.log.runs import open_node
from headwater.log.stream_fields import COUNTERS, StreamHead, head_command, stream_head
from headwater.store.scrubbing import (
    EVICT,
    PAGE,
    Checks,
    Command,
    Repair,
    ScrubLedger,
    Sweep,
    read,
    settled,
    shown,
)

# How many bytes of messages are read by one call.
CALL_BYTES: Final = 1024 * 1024
_ROW_LOST: Final = "restore the stream from a backup; the messages are in this node"
_BY_TIME: Final = "finding offsets by time may miss messages around it; nothing else is wrong"


class IndexRow(NamedTuple):
    """A row of the index: a node's facts, its last offset, and its member as it is stored."""

    facts: IndexedNode
    last: int
    member: bytes


def rows_command(key: str, start: int | str) -> Command:
    """Return the command that reads a page of the index, from a last offset on."""
    return ("ZRANGE", index_key(key), start, "+inf", "BYSCORE", "LIMIT", 0, PAGE, "WITHSCORES")


def rows_of(reply: list[bytes], ledger: ScrubLedger | None = None) -> list[IndexRow]:
    """Read rows of the index; a row that cannot be read is a defect, and left out."""
    rows = []
    for member, score in zip(reply[::2], reply[1::2], strict=True):
        try:
            rows.append(IndexRow(IndexedNode.of(member), int(score), member))
        except (ValueError, TypeError):
            if ledger is not None:
                form = "base:count:bytes:time:newest:version"
                ledger.found(f"index row {score!r}", form, repr(member), EVICT)
    return rows


def check_nodes(stream: str, ledger: ScrubLedger) -> Checks[None]:
    """Check all nodes of a stream, their index, and the counters of both."""
    key = stream_key(stream)
    judge = True

    def sweep() -> Checks[Sweep | None]:
        nonlocal judge
        found = yield from _sweep_index(key, ledger, judge)
        judge = False
        return found

    wrong = yield from settled(ledger, sweep)
    if wrong is None:
        return
    for place, counter in enumerate(COUNTERS):
        if wrong.differences[place]:
            was = ((("HMGET", key, *COUNTERS, "sealed", "first"), wrong.seen),)
            changes: tuple[Command, ...] = (("HINCRBY", key, counter, wrong.differences[place]),)
            repair = Repair(f"sets {counter} to {wrong.sums[place]}", key, was, changes)
            ledger.found(f"field {counter}", wrong.sums[place], wrong.counted[place], repair=repair)


def _sweep_index(key: str, ledger: ScrubLedger, judge: bool) -> Checks[Sweep | None]:
    """Add up the index, page by page; the first time, check each row and its node as well.

    A page begins with the last row of the one before it, so that neighbours are seen together.
    """
    start: int | str = "-inf"
    at, digest, seen = 1, 0, b""
    total = dict.fromkeys(COUNTERS, 0)
    while True:
        command, counters = rows_command(key, start), ("HMGET", key, *COUNTERS, "sealed", "first")
        values, fields, reply = yield read(ledger, key, head_command(key), counters, command)
        head = stream_head(values)
        rows = rows_of(reply, ledger if judge else None)
        if head is None:
            return None
        for row in rows:
            if row.member != seen and head.freed < row.last <= head.sealed:
                total["bytes"] += row.facts.size
                total["holes"] += row.last - row.facts.base + 1 - row.facts.messages
        if judge:
            at = _check_rows(rows, at, head, ledger, whole=len(reply) < 2 * PAGE)
            for part in _parts(rows, head.first):
                yield from _check_blobs(key, part, ledger)
        if len(reply) < 2 * PAGE or not rows:
            sums = (total["bytes"], total["holes"])
            return Sweep(digest, sums, (head.bytes, head.holes), fields)
        digest = crc32(b" ".join(reply), digest) or 1
        start, seen = rows[-1].last, rows[-1].member


def _check_rows(
    rows: list[IndexRow], at: int, head: StreamHead, ledger: ScrubLedger, *, whole: bool
) -> int:
    """Check that rows follow each other from ``at`` on; returns the offset that must come next."""
    at, newest = max(at, head.first), 0
    for place, (facts, last, _) in enumerate(rows):
        name = f"node {facts.base}-{last}"
        if facts.base > at:
            gap = f"{at}-{facts.base - 1}"
            ledger.found(f"offsets {gap}", "a node that holds them", "none", EVICT)
        elif place and facts.base <= rows[place - 1].last:
            where = f"after {rows[place - 1].last}"
            ledger.found(name, f"begins {where}", f"begins at {facts.base}", EVICT)
        if not 0 <= facts.messages <= last - facts.base + 1:
            room = f"0 to {last - facts.base + 1} messages"
            ledger.found(name, room, facts.messages, EVICT)
        if facts.newest < newest:
            ledger.found(name, f"newest time {newest} or later", facts.newest, _BY_TIME)
        elif facts.newest > head.time and last <= head.sealed:
            expected = f"newest time {head.time}, that of the stream, or earlier"
            ledger.found(name, expected, facts.newest, _BY_TIME)
        at, newest = max(at, last + 1), max(newest, facts.newest)
    if whole and at <= head.sealed:
        ledger.found(f"offsets {at}-{head.sealed}", "a node that holds them", "none", EVICT)
    return at


def _parts(rows: list[IndexRow], first: int) -> list[list[IndexRow]]:
    """Cut rows into parts whose nodes are read by one call; what was evicted is left out."""
    parts: list[list[IndexRow]] = []
    room = 0
    for row in rows:
        if row.last < first:
            continue
        if row.facts.size > room or not parts:
            parts.append([])
            room = CALL_BYTES
        parts[-1].append(row)
        room -= row.facts.size
    return parts


def _check_blobs(key: str, rows: list[IndexRow], ledger: ScrubLedger) -> Checks[None]:
    """Check that each node exists, is undamaged and matches its row; unless it was replaced."""
    bases = [row.facts.base for row in rows]
    span: Command = ("ZRANGE", index_key(key), rows[0].last, rows[-1].last, "BYSCORE", "WITHSCORES")
    reply, blobs = yield read(ledger, key, span, ("HMGET", nodes_key(key), *bases))
    found = dict(zip(bases, blobs, strict=True))
    for facts, last, _ in rows_of(reply):
        if facts.base in found:
            fault = _fault_of(facts, last, found[facts.base])
            if fault:
                cure = _BY_TIME if fault[0].startswith("newest") else EVICT
                ledger.found(f"node {facts.base}-{last}", fault[0], fault[1], cure)


def _fault_of(facts: IndexedNode, last: int, blob: bytes | None) -> tuple[str, str] | None:
    """Return what was expected of a node and what was found instead; None when it is right."""
    if blob is None:
        return "a node", "none"
    if len(blob) != facts.size:
        return f"{facts.size} bytes", f"{len(blob)} bytes"
    if not blob:
        return None if not facts.messages else (f"{facts.messages} messages", "none")
    try:
        batch = open_node(SentNode(facts.base, last, facts.time, facts.version, blob), "")
        if "headers" in batch.schema.names:
            check_stored(batch.column("headers").to_pylist())
    except UnreadableNode as error:
        return "a node that can be read", error.why
    if batch.num_rows != facts.messages:
        return f"{facts.messages} messages", f"{batch.num_rows}"
    offsets: list[Any] = (
        batch.column("offset").to_pylist()
        if "offset" in batch.schema.names
        else list(range(facts.base, facts.base + batch.num_rows))
    )
    rising = all(a < b for a, b in pairwise(offsets))
    if offsets and not (rising and facts.base <= offsets[0] and offsets[-1] <= last):
        return f"offsets that rise from {facts.base} to {last}", f"{offsets[0]}-{offsets[-1]}"
    times = batch.column("time").to_pylist() if "time" in batch.schema.names else [facts.time]
    if facts.newest < max(times, default=0):
        return f"newest time {max(times)} or later", str(facts.newest)
    return None


def check_stray_nodes(key: str, ledger: ScrubLedger) -> Checks[None]:
    """Find nodes that the index does not name, which are never read."""
    cursor: bytes | str = "0"
    while True:
        ((cursor, found),) = yield read(ledger, key, ("HSCAN", nodes_key(key), cursor, "COUNT", 10))
        for base in found[::2]:
            if not base.isdigit():
                _report_stray(key, base, ((("HGET", key, "replacing"), None),), ledger)
                continue
            where: Command = ("ZRANGE", index_key(key), base, "+inf", "BYSCORE", "LIMIT", 0, 1)
            length: Command = ("HSTRLEN", nodes_key(key), base)
            values, row, kept = yield read(ledger, key, head_command(key), where, length)
            if not kept or (row and row[0].startswith(base + b":")):
                continue
            head, at = stream_head(values), int(base)
            begins = row[0].partition(b":")[0] if row else b""
            if not row:
                following = head.sealed + 1 if head else 0
            else:
                following = int(begins) if begins.isdigit() else at + 1
            if head and max(at, head.first) < following:
                # No other node holds its offsets: its row is lost, and it is the only copy.
                ledger.found(f"node at {at}", "a row of the index", "none", _ROW_LOST)
            else:
                _report_stray(key, base, ((where, row), (length, kept)), ledger)
        if cursor == b"0":
            return


def _report_stray(
    key: str, base: bytes, expected: tuple[tuple[Command, Any], ...], ledger: ScrubLedger
) -> None:
    changes: tuple[Command, ...] = (("HDEL", nodes_key(key), base),)
    repair = Repair("drops it: no reader finds it", key, expected, changes)
    ledger.found(f"node at {shown(base)}", "a row of the index", "none", repair=repair)
