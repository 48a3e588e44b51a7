"""What must be true of a stream and a topic, and how it is checked while they are in use.

Nodes and their index agree one to one and follow each other up to ``sealed``; the tail continues
from there to ``last``, and not beyond; bytes and checksums are right; the counters are the sums;
what producers were answered is in the stream. See headwater/store/scrubbing.py for how checks work.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, Final, NamedTuple
from zlib import crc32

from headwater.errors import UnreadableNode
from headwater.kernel.headers import check_stored
from headwater.log import group_scrubbing
from headwater.log.group_scrubbing import (
    COUNTERS,
    FIELDS,
    StreamHead,
    head_command,
    stream_head,
    tidy_call,
)
from headwater.log.keys import (
    MAX_PARTITIONS,
    STREAMS,
    group_key,
    index_key,
    nodes_key,
    stream_key,
    tail_key,
    topic_key,
)
from headwater.log.node import open_entries, open_node
from headwater.log.replies import IndexedNode, SentNode
from headwater.store.scrubbing import (
    EVICT,
    NOBODYS,
    PAGE,
    YOUNG_US,
    Checks,
    Command,
    OwnedKey,
    Repair,
    ScrubLedger,
    Sweep,
    check_answers,
    check_registered,
    check_type,
    number,
    parts_of,
    read,
    report_orphan,
    settled,
    shown,
)

# ── Node scrubbing ────────────────────────────────────────────────────────────────────────────────
# What must be true of the nodes of a stream: they and their index agree, one to one, without gaps.
#
# Each node is read, and its checksum compared; the counters of the stream are the sums of the
# index.


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


# ── Publish scrubbing ─────────────────────────────────────────────────────────────────────────────
# Checks of unfinished publishes: everything that they have to move is there.


_PUBLISH = re.compile(rb"\d+:\d+:\d+:\d+:\d+(?::(\d+):([01])(?::[0-9a-f.]*)?)?")
_GONE = "publish it again under another sequence, from where it came from"


def check_publishes(key: str, ledger: ScrubLedger) -> Checks[None]:
    """Check each unfinished publish of a stream, and the stagings that it has to move."""
    cursor: bytes | str = "0"
    while True:
        commands: tuple[Command, ...] = (("HSCAN", f"{key}:publishing", cursor, "COUNT", PAGE),)
        replies = yield read(ledger, key, *commands)
        if ledger.wrong_types(commands, replies):
            return
        cursor, found = replies[0]
        for producer, state in zip(found[::2], found[1::2], strict=True):
            if not _PUBLISH.fullmatch(state):
                name = shown(producer)
                form = "sequence:first:last:index:time"
                ledger.found(f"publish of {name!r}", form, repr(state), _GONE)
            yield from _check_stagings(key, producer, ledger)
        if cursor == b"0":
            return


def _check_stagings(key: str, producer: bytes, ledger: ScrubLedger) -> Checks[None]:
    """Check that what a publish has still to move is there.

    The first ones may have been moved already. A publish that has not begun holds none.
    """
    names = f"{key}:publish:".encode() + producer
    start = 0
    while True:
        (page,) = yield read(ledger, key, ("LRANGE", names, start, start + PAGE - 1))
        for staging in [] if isinstance(page, Exception) else page:
            staged = f"{key}:staged:".encode() + staging
            state, listed, length, nodes = yield read(
                ledger,
                key,
                ("HGET", f"{key}:publishing", producer),
                ("LPOS", names, staging),
                ("LLEN", names),
                ("HMGET", staged, "n", "begun"),
            )
            found = _PUBLISH.fullmatch(state or b"")
            if listed is None or found is None or found[2] == b"0":
                continue
            moved = length - int(found[1]) if found[1] else 0
            if listed >= moved and (isinstance(nodes, Exception) or None in nodes):
                place, expected = (
                    f"publish of {shown(producer)!r}",
                    f"the staging {shown(staging)!r}",
                )
                ledger.found(place, expected, "none", _GONE)
        if isinstance(page, Exception) or len(page) < PAGE:
            return
        start += PAGE


# ── Scrubbing ─────────────────────────────────────────────────────────────────────────────────────


def check_stream(name: str, ledger: ScrubLedger) -> Checks[None]:
    """Check a stream with its producers, publishes and groups; it need not exist."""
    ledger.begin("stream", name)
    key = stream_key(name)
    head = yield from _check_head(key, ledger)
    if head is None:
        return
    if not head.replacing:
        yield from check_nodes(name, ledger)
    yield from _check_tail(key, head, ledger)
    yield from check_answers(key, ledger, ("HGET", key, "last"), number)
    yield from check_publishes(key, ledger)
    yield from group_scrubbing.check_groups(name, ledger)


# ── Fields ───────────────────────────────────────────────────────────────────────────────────


def _check_head(key: str, ledger: ScrubLedger) -> Checks[StreamHead | None]:
    """Check how the fields, the end of the tail and the sizes of nodes and index agree."""
    commands: tuple[Command, ...] = (
        head_command(key),
        ("XREVRANGE", tail_key(key), "+", "-", "COUNT", 1),
        ("ZCARD", index_key(key)),
        ("HLEN", nodes_key(key)),
        ("ZRANGE", index_key(key), -1, -1, "WITHSCORES"),
    )
    replies = yield read(ledger, key, *commands)
    if ledger.wrong_types(commands, replies):
        return None
    values, newest, indexed, kept, end = replies
    head = stream_head(values)
    if head is None:
        said = ", ".join(f"{f}={v!r}" for f, v in zip(FIELDS, values, strict=True) if v)
        ledger.found("fields", "numbers", said, "restore the stream from a backup")
        return None
    if newest and not head.created:
        ledger.found("field created", "the time of the first write", "none", EVICT)
    _check_bounds(key, head, ledger)
    tail_end = int(newest[0][0][2:]) if newest else 0
    if tail_end > head.last or head.replacing:
        # A half-done call is completed first: until then nodes may not be listed.
        yield from _check_unfinished(key, head, ledger)
        return head
    if indexed != kept:
        yield from check_stray_nodes(key, ledger)
    if tail_end < head.last:
        missing = f"{max(tail_end, head.sealed) + 1}-{head.last}"
        what = missing if max(tail_end, head.sealed) < head.last else "only its newest entry"
        ledger.found("tail", f"entries up to {head.last}", f"{what} is missing", EVICT)
    if end and float(end[1]) > head.sealed:
        yield from _check_beyond_sealed(key, head, ledger)
    return head


def _check_bounds(key: str, head: StreamHead, ledger: ScrubLedger) -> None:
    def repaired(field: str, value: int) -> Repair:
        changes: tuple[Command, ...] = (("HSET", key, field, value),)
        return Repair(f"sets {field} to {value}", key, ((head_command(key), head.raw),), changes)

    if not 1 <= head.first <= head.last + 1:
        ledger.found("field first", f"1 to {head.last + 1}", head.first, EVICT)
    elif head.sealed < head.first - 1:
        repair = repaired("sealed", head.first - 1)
        ledger.found("field sealed", f"{head.first - 1} or more", head.sealed, repair=repair)
    elif head.sealed > head.last:
        ledger.found("field sealed", f"at most last, {head.last}", head.sealed, EVICT)
    elif head.cold > head.sealed:
        repair = repaired("cold", head.sealed)
        ledger.found("field cold", f"at most sealed, {head.sealed}", head.cold, repair=repair)


def _check_unfinished(key: str, head: StreamHead, ledger: ScrubLedger) -> Checks[None]:
    """Report a write, or a change of nodes, that stopped half-way.

    The next call that writes completes it, or drops what is not whole; the write was never
    acknowledged. The functions of the stream do so when they are asked to tidy it.
    """
    entries: Command = ("XRANGE", tail_key(key), f"(0-{head.last}", "+", "COUNT", PAGE)
    values, beyond = yield read(ledger, key, head_command(key), entries)
    now = stream_head(values)
    if now is None:
        return
    tidy = tidy_call(key, 0)
    if now.replacing:
        repair = Repair("finishes it", key, call=tidy)
        ledger.found("field replacing", "no change that is not finished", "one", repair=repair)
    at, follow = now.last, True
    for entry_id, fields in beyond:
        if int(entry_id[2:]) <= now.last:
            continue
        facts = dict(zip(fields[::2], fields[1::2], strict=False))
        follow &= int(entry_id[2:]) - (number(facts.get(b"n"), 1) or 0) == at
        at = int(entry_id[2:])
    if at == now.last:
        return
    found = f"entries {now.last + 1}-{at}"
    cure = "write no more to it; read what it has into another stream, and delete it"
    done = Repair("completes the write that stopped half-way, or drops it", key, call=tidy)
    ledger.found("tail", f"no entry beyond last, {now.last}", found, cure, done if follow else None)


def _check_beyond_sealed(key: str, head: StreamHead, ledger: ScrubLedger) -> Checks[None]:
    """Nodes are beyond `sealed`: their sealing stopped half-way.

    The tail may still have their messages.
    """
    commands: tuple[Command, ...] = (
        head_command(key),
        rows_command(key, f"({head.sealed}"),
        ("XRANGE", tail_key(key), f"0-{head.sealed + 1}", "+", "COUNT", 1),
    )
    values, rows, entries = yield read(ledger, key, *commands)
    now, nodes = stream_head(values), rows_of(rows)
    nodes = [row for row in nodes if now and row.last > now.sealed]
    if now is None or not nodes:
        return
    seen = f"nodes {nodes[0].facts.base}-{nodes[-1].last}"
    expected = ((commands[0], values), (commands[1], rows))
    changes: list[Command] = []
    in_tail = bool(entries) and int(entries[0][0][2:]) > now.sealed and len(entries[0][1]) > 2
    if in_tail:
        what = "drops these nodes: the tail has their messages"
        for row in nodes:
            changes.append(("ZREM", index_key(key), row.member))
            changes.append(("HDEL", nodes_key(key), row.facts.base))
    else:
        what = f"takes in the messages up to {nodes[-1].last}"
        ends = ("sealed", nodes[-1].last, "last", max(now.last, nodes[-1].last))
        changes.append(("HSET", key, *ends, "time", max(now.time, nodes[-1].facts.newest)))
    repair = Repair(what, key, expected, tuple(changes))
    ledger.found("index", f"no node beyond sealed, {now.sealed}", seen, repair=repair)


# ── The tail ─────────────────────────────────────────────────────────────────────────────────


def _check_tail(key: str, head: StreamHead, ledger: ScrubLedger) -> Checks[None]:
    """Check that entries follow each other from sealed to last, and can be read."""
    at, end, count = head.sealed + 1, head.last, 1
    while at <= end:
        span: Command = ("XRANGE", tail_key(key), f"0-{at}", f"0-{end}", "COUNT", count)
        values, entries = yield read(ledger, key, head_command(key), span)
        now = stream_head(values)
        if now is None or now.raw[FIELDS.index("created")] != head.raw[FIELDS.index("created")]:
            return
        if now.sealed >= at:
            at = now.sealed + 1
            continue
        if not entries:
            ledger.found(f"offsets {at}-{end}", "entries in the tail", "none", EVICT)
            return
        size = 0
        for entry in entries:
            base, last, fault = _entry_fault(entry)
            if fault:
                ledger.found(f"tail entry {last}", "an entry that can be read", fault, EVICT)
            elif base > at:
                ledger.found(f"offsets {at}-{base - 1}", "entries in the tail", "none", EVICT)
            at = max(at, last + 1)
            size += sum(map(len, entry[1]))
        count = max(1, min(4 * count, PAGE, CALL_BYTES * len(entries) // max(size, 1)))


def _entry_fault(entry: Any) -> tuple[int, int, str]:
    """Return the offsets of an entry of the tail, and why it cannot be read, if it cannot."""
    last = int(entry[0][2:])
    try:
        (run,) = open_entries([entry])
        if run.headed:
            check_stored(run.to_arrow(headers=True).column("headers").to_pylist())
    except UnreadableNode as error:
        return last, last, error.why
    except ValueError:
        return last, last, "fields of another form"
    return run.base, last, ""


# ── Key scrubbing ─────────────────────────────────────────────────────────────────────────────────
# Which keys under the name of a stream belong to it, and which are left over.


# Keys that only a stream that was written has.
_WRITTEN: Final = (b":tail", b":nodes", b":index")
_DELETED = re.compile(rb":deleted:\d+(:publishing)?")
_GROUP = re.compile(rb":g:(\d+):(.*)", re.DOTALL)
_DAY_MS: Final = 24 * 3600 * 1000


def check_stream_key(found: OwnedKey, ledger: ScrubLedger) -> Checks[None]:
    """Check one key under the name of a stream."""
    key, part = stream_key(found.name), found.part
    ledger.kind, ledger.name = "stream", found.name
    if part == b":remade":
        # It exists only during one call.
        report_orphan(key, found.key, "nothing: it is left of a call", (), ledger)
    elif kind := parts_of("log", "K").get(part):
        right = yield from check_type(key, found.key, kind, ledger)
        if right and part == b"":
            yield from _check_known(key, found.name, ledger)
        elif right and part in _WRITTEN:
            created: Command = ("HGET", key, "created")
            there, age = yield read(ledger, key, ("EXISTS", found.key), created)
            if there and age is None:
                report_orphan(
                    key, found.key, "a stream that was written", ((created, None),), ledger
                )
    elif deleted := _DELETED.fullmatch(part):
        yield from check_type(key, found.key, "hash" if deleted[1] else "zset", ledger)
    elif part.startswith(b":staged:"):
        if (yield from check_type(key, found.key, "hash", ledger)):
            yield from _check_staged(key, found.key, part[len(b":staged:") :], ledger)
    elif part.startswith(b":publish:"):
        if (yield from check_type(key, found.key, "list", ledger)):
            publish: Command = ("HGET", f"{key}:publishing", part[len(b":publish:") :])
            there, state, freeing = yield read(
                ledger, key, ("EXISTS", found.key), publish, ("EXISTS", f"{key}:deleted")
            )
            # What belongs to a stream that was deleted is freed in steps.
            if there and state is None and not freeing:
                report_orphan(key, found.key, "an unfinished publish", ((publish, None),), ledger)
    elif group := _GROUP.fullmatch(part):
        yield from _check_group_key(key, found, int(group[1]), group[2], ledger)
    else:
        ledger.found(f"key {shown(found.key)}", "a part of a stream", "no such part", NOBODYS)


def _check_known(key: str, name: str, ledger: ScrubLedger) -> Checks[None]:
    created, now = yield read(ledger, key, ("HGET", key, "created"), ("TIME",))
    age_us = int(now[0]) * 1_000_000 + int(now[1]) - (number(created) or 0)
    if created is not None and age_us > YOUNG_US:
        yield from check_registered(STREAMS, name, ledger)


def _check_staged(key: str, staged: bytes, name: bytes, ledger: ScrubLedger) -> Checks[None]:
    """Check that what is staged expires, or belongs to a publish."""
    begun: Command = ("HGET", staged, "begun")
    expiry: Command = ("PTTL", staged)
    there, left_ms, producers, freeing = yield read(
        ledger, key, begun, expiry, ("HKEYS", f"{key}:publishing"), ("EXISTS", f"{key}:deleted")
    )
    if left_ms != -1 or freeing:
        return
    lists = [f"{key}:publish:".encode() + producer for producer in producers]
    seen: tuple[Command, ...] = (begun, expiry, *(("LPOS", each, name) for each in lists))
    replies = yield read(ledger, key, *seen)
    if replies[1] != -1 or any(place is not None for place in replies[2:]):
        return
    changes: tuple[Command, ...] = (("HDEL", staged, "begun"), ("PEXPIRE", staged, _DAY_MS))
    what = "lets it be published again, or expire in a day"
    repair = Repair(what, key, tuple(zip(seen, replies, strict=True)), changes)
    said = "none, and it does not expire" if there is not None else "it does not expire"
    ledger.found(f"staging {shown(name)!r}", "a publish that it belongs to", said, repair=repair)


def _check_group_key(
    key: str, found: OwnedKey, length: int, rest: bytes, ledger: ScrubLedger
) -> Checks[None]:
    try:
        name, part = rest[:length].decode(), rest[length:]
    except UnicodeDecodeError:
        name, part = "", b"?"
    group = group_key(key, name)
    waiter = part[len(b":box:") :] if part.startswith(b":box:") else None
    kind = "list" if waiter is not None else parts_of("log", "G").get(part)
    if kind is None:
        ledger.found(f"key {shown(found.key)}", "a part of a group", "no such part", NOBODYS)
        return
    if not (yield from check_type(key, found.key, kind, ledger)):
        return
    listed: Command = ("ZSCORE", f"{key}:groups", name)
    fields: Command = ("HMGET", group, "next", "created", "era")
    replies = yield read(
        ledger,
        key,
        ("EXISTS", found.key),
        listed,
        fields,
        ("HGET", key, "era"),
        ("ZRANGE", f"{key}:deleted", 0, -1),
    )
    # A key of another type is reported where it is read.
    if not replies[0] or any(isinstance(reply, Exception) for reply in replies):
        return
    _, score, (at, created, era), now_era, eras = replies
    if score is not None:
        if waiter is not None:
            yield from _check_box(key, group, found.key, waiter, ledger)
        return
    if eras:
        # Groups of a stream that was deleted are freed in steps.
        yield from _check_deleted(key, found, name, eras, listed, ledger)
    elif at is not None and (era or b"") == (now_era or b""):
        if not part:
            changes: tuple[Command, ...] = (
                ("ZADD", f"{key}:positions", 0, name),
                ("ZADD", f"{key}:groups", number(created) or 0, name),
            )
            repair = Repair("lists the group again", key, ((listed, None),), changes)
            place = f"list of groups, {name!r}"
            ledger.found(place, "the group", "not listed", repair=repair)
    else:
        gone: tuple[tuple[Command, object], ...] = ((listed, None), (("HGET", group, "next"), at))
        report_orphan(key, found.key, f"the group {name!r}", gone, ledger)


def _check_deleted(
    key: str,
    found: OwnedKey,
    name: str,
    eras: list[bytes],
    listed: Command,
    ledger: ScrubLedger,
) -> Checks[None]:
    lists = [f"{key}:deleted:{shown(era)}" for era in eras]
    seen: tuple[Command, ...] = (listed, *(("ZSCORE", each, name) for each in lists))
    there, *places = yield read(ledger, key, ("EXISTS", found.key), *seen)
    if there and all(place is None for place in places):
        gone = tuple((command, None) for command in seen)
        report_orphan(key, found.key, f"the group {name!r}", gone, ledger)


def _check_box(
    key: str, group: str, box: bytes, waiter: bytes, ledger: ScrubLedger
) -> Checks[None]:
    """Check that a box will be emptied: by its owner, or by the call that takes it back."""
    seen: tuple[Command, ...] = (
        ("ZSCORE", f"{group}:served", waiter),
        ("ZSCORE", f"{group}:waiters", waiter),
        ("HGET", group, b"w:" + waiter),
    )
    there, handed, *owner = yield read(
        ledger, key, ("EXISTS", box), ("HGET", group, "handed"), *seen
    )
    noted = b" " + (handed or b"")
    if not there or any(fact is not None for fact in owner) or b" " + waiter + b":" in noted:
        return
    changes: tuple[Command, ...] = (("ZADD", f"{group}:served", 0, waiter),)
    what = "lets the group take back what is in it"
    repair = Repair(what, key, tuple(zip(seen, owner, strict=True)), changes)
    ledger.found(f"box {shown(waiter)}", "a member that looks into it", "none", repair=repair)


# ── Topic scrubbing ───────────────────────────────────────────────────────────────────────────────
# What must be true of a topic: it knows how many partitions it has.


def check_topic(name: str, ledger: ScrubLedger) -> Checks[None]:
    """Check a topic, without its streams, which are checked as such; it need not exist."""
    ledger.begin("topic", name)
    key = topic_key(name)
    commands: tuple[Command, ...] = (("HGET", key, "partitions"),)
    replies = yield read(ledger, key, *commands)
    if ledger.wrong_types(commands, replies) or replies[0] is None:
        return
    if not 1 <= (number(replies[0]) or 0) <= MAX_PARTITIONS:
        cure = f"count the streams {name}/0, {name}/1, ..., and set the field to that number"
        ledger.found("field partitions", f"1 to {MAX_PARTITIONS}", repr(replies[0]), cure)


def check_topic_key(found: OwnedKey, ledger: ScrubLedger) -> Checks[None]:
    """Check a key under the name of a topic: it has one."""
    ledger.kind, ledger.name = "topic", found.name
    if found.part:
        ledger.found(f"key {shown(found.key)}", "a topic", "no such part", NOBODYS)
    else:
        yield from check_type(topic_key(found.name), found.key, "hash", ledger)
