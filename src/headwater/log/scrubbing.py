"""What must be true of a stream and a topic, and how it is checked while they are in use.

Nodes and their index agree one to one and follow each other up to ``sealed``; the tail continues
from there to ``last``, and not beyond; bytes and checksums are right; the counters are the sums;
what producers were answered is in the stream. See headwater/store/scrubbing.py for how checks work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

from headwater.errors import UnreadableNode
from headwater.kernel.headers import check_stored
from headwater.log.group_scrubbing import check_groups, tidy_call
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
    PAGE,
    Checks,
    Command,
    KeyRules,
    OwnedKey,
    PartRule,
    Repair,
    Row,
    RowsPage,
    ScrubLedger,
    Subject,
    Sums,
    check_answers,
    check_owned,
    check_registered,
    check_sums,
    check_type,
    number,
    parts_of,
    report_orphan,
    shown,
)

# How many bytes of messages are read by one call.
CALL_BYTES: Final = 1024 * 1024

# ── Streams ───────────────────────────────────────────────────────────────────────────────────────


_COUNTERS: Final = ("bytes", "holes")


class StreamHead(NamedTuple):
    """The fields of a stream as numbers; ``raw`` as they are stored."""

    first: int
    last: int
    sealed: int
    cold: int
    time: int
    created: int
    freed: int
    bytes: int
    holes: int
    raw: Sequence[object]

    @property
    def replacing(self) -> bool:
        """Whether nodes are being replaced: the index may lack some until that is finished."""
        return self.raw[-1] is not None


_NUMBERS: Final = StreamHead._fields[:-1]
_FIELDS: Final = (*_NUMBERS, "replacing")


def _head(key: str) -> Command:
    """Return the command that reads the fields of a stream."""
    return ("HMGET", key, *_FIELDS)


def stream_head(values: list[bytes | None] | Exception) -> StreamHead | None:
    """Return the fields of a stream as numbers; None when one is none, or the reply an error."""
    if isinstance(values, Exception):
        return None
    defaults = {"first": 1}
    numbers = [
        number(value, defaults.get(name, 0)) for name, value in zip(_NUMBERS, values, strict=False)
    ]
    if None in numbers:
        return None
    return StreamHead._make((*numbers, values))


def check_stream(name: str, ledger: ScrubLedger) -> Checks[None]:
    """Check a stream with its producers, publishes and groups; it need not exist."""
    ledger.begin("stream", name)
    key = stream_key(name)
    subject = Subject(key, ledger)
    head = yield from _check_head(subject, key)
    if head is None:
        return
    if not head.replacing:
        yield from check_sums(
            subject,
            Sums(
                key,
                _COUNTERS,
                ("sealed", "first"),
                index_key(key),
                _bytes_and_holes,
                _NodeChecks(subject, key).check,
                more=(_head(key),),
            ),
        )
    yield from _check_tail(subject, key, head)
    yield from check_answers(subject, ("HGET", key, "last"), number)
    publishes = partial(_check_publishes, subject, key)
    yield from subject.walk("HSCAN", f"{key}:publishing", publishes)
    yield from check_groups(name, ledger)


def _check_head(subject: Subject, key: str) -> Checks[StreamHead | None]:
    """Check how the fields, the end of the tail and the sizes of nodes and index agree."""
    replies = yield from subject.look(
        _head(key),
        ("XREVRANGE", tail_key(key), "+", "-", "COUNT", 1),
        ("ZCARD", index_key(key)),
        ("HLEN", nodes_key(key)),
        ("ZRANGE", index_key(key), -1, -1, "WITHSCORES"),
    )
    if replies is None:
        return None
    values, newest, indexed, kept, end = replies
    head = stream_head(values)
    if head is None:
        said = ", ".join(f"{f}={v!r}" for f, v in zip(_FIELDS, values, strict=True) if v)
        subject.found("fields", "numbers", said, "restore the stream from a backup")
        return None
    if newest and not head.created:
        subject.found("field created", "the time of the first write", "none", EVICT)
    _check_bounds(subject, key, head)
    tail_end = int(newest[0][0][2:]) if newest else 0
    if tail_end > head.last or head.replacing:
        # A half-done call is completed first: until then nodes may not be listed.
        yield from _check_unfinished(subject, key, head.last)
        return head
    if indexed != kept:
        stray = partial(_check_stray_nodes, subject, key)
        yield from subject.walk("HSCAN", nodes_key(key), stray, count=10)
    if tail_end < head.last:
        missing = f"{max(tail_end, head.sealed) + 1}-{head.last}"
        what = missing if max(tail_end, head.sealed) < head.last else "only its newest entry"
        subject.found("tail", f"entries up to {head.last}", f"{what} is missing", EVICT)
    if end and float(end[1]) > head.sealed:
        yield from _check_beyond_sealed(subject, key, head)
    return head


def _check_bounds(subject: Subject, key: str, head: StreamHead) -> None:
    """Check that fields are within their bounds: the first that is not is set to it, or told."""
    first, last, sealed = head.first, head.last, head.sealed
    bounds = (
        ("first", 1 <= first <= last + 1, f"1 to {last + 1}", None),
        ("sealed", sealed >= first - 1, f"{first - 1} or more", first - 1),
        ("sealed", sealed <= last, f"at most last, {last}", None),
        ("cold", head.cold <= sealed, f"at most sealed, {sealed}", sealed),
    )
    for field, within, expected, bound in bounds:
        if within:
            continue
        place, actual = f"field {field}", getattr(head, field)
        if bound is None:
            subject.found(place, expected, actual, EVICT)
        else:
            what, change = f"sets {field} to {bound}", ("HSET", key, field, bound)
            subject.mend(place, expected, actual, what, [(_head(key), head.raw)], change)
        return


def _check_unfinished(subject: Subject, key: str, end: int) -> Checks[None]:
    """Report a write, or a change of nodes, that stopped half-way.

    The next call that writes completes it, or drops what is not whole; the write was never
    acknowledged. The functions of the stream do so when they are asked to tidy it.
    """
    beyond: Command = ("XRANGE", tail_key(key), f"(0-{end}", "+", "COUNT", PAGE)
    values, entries = yield subject.read(_head(key), beyond)
    head = stream_head(values)
    if head is None:
        return
    tidy = tidy_call(key, 0)
    if head.replacing:
        repair = Repair("finishes it", key, call=tidy)
        expected = "no change that is not finished"
        subject.ledger.found("field replacing", expected, "one", repair=repair)
    at, follow = head.last, True
    for entry_id, fields in entries:
        if (last := int(entry_id[2:])) > head.last:
            facts = dict(zip(fields[::2], fields[1::2], strict=False))
            follow &= last - (number(facts.get(b"n"), 1) or 0) == at
            at = last
    if at == head.last:
        return
    found = f"entries {head.last + 1}-{at}"
    cure = "write no more to it; read what it has into another stream, and delete it"
    done = Repair("completes the write that stopped half-way, or drops it", key, call=tidy)
    expected = f"no entry beyond last, {head.last}"
    subject.ledger.found("tail", expected, found, cure, done if follow else None)


def _check_beyond_sealed(subject: Subject, key: str, head: StreamHead) -> Checks[None]:
    """Nodes are beyond `sealed`: their sealing stopped half-way.

    The tail may still have their messages.
    """
    span = (f"({head.sealed}", "+inf", "BYSCORE", "LIMIT", 0, PAGE, "WITHSCORES")
    seen = (_head(key), ("ZRANGE", index_key(key), *span))
    values, rows, entries = yield subject.read(
        *seen, ("XRANGE", tail_key(key), f"0-{head.sealed + 1}", "+", "COUNT", 1)
    )
    now = stream_head(values)
    nodes = [
        row
        for row in rows_of(zip(rows[::2], rows[1::2], strict=True))
        if now and row.last > now.sealed
    ]
    if now is None or not nodes:
        return
    changes: list[Command] = []
    if entries and int(entries[0][0][2:]) > now.sealed and len(entries[0][1]) > 2:
        what = "drops these nodes: the tail has their messages"
        for row in nodes:
            changes.append(("ZREM", index_key(key), row.member))
            changes.append(("HDEL", nodes_key(key), row.facts.base))
    else:
        what = f"takes in the messages up to {nodes[-1].last}"
        ends = ("sealed", nodes[-1].last, "last", max(now.last, nodes[-1].last))
        changes.append(("HSET", key, *ends, "time", max(now.time, nodes[-1].facts.newest)))
    expected = f"no node beyond sealed, {now.sealed}"
    found = f"nodes {nodes[0].facts.base}-{nodes[-1].last}"
    subject.mend("index", expected, found, what, zip(seen, (values, rows), strict=True), *changes)


def _check_tail(subject: Subject, key: str, head: StreamHead) -> Checks[None]:
    """Check that entries follow each other from sealed to last, and can be read."""
    at, end, count = head.sealed + 1, head.last, 1
    while at <= end:
        span: Command = ("XRANGE", tail_key(key), f"0-{at}", f"0-{end}", "COUNT", count)
        values, entries = yield subject.read(_head(key), span)
        now = stream_head(values)
        created = _FIELDS.index("created")
        if now is None or now.raw[created] != head.raw[created]:
            return
        if now.sealed >= at:
            at = now.sealed + 1
            continue
        if not entries:
            subject.found(f"offsets {at}-{end}", "entries in the tail", "none", EVICT)
            return
        size = 0
        for entry in entries:
            base, last, fault = _entry_fault(entry)
            if fault:
                subject.found(f"tail entry {last}", "an entry that can be read", fault, EVICT)
            elif base > at:
                subject.found(f"offsets {at}-{base - 1}", "entries in the tail", "none", EVICT)
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


# ── Nodes ─────────────────────────────────────────────────────────────────────────────────────────
# They and their index agree, one to one, without gaps. Each is read, and its checksum compared.


_ROW_LOST: Final = "restore the stream from a backup; the messages are in this node"
_BY_TIME: Final = "finding offsets by time may miss messages around it; nothing else is wrong"


class IndexRow(NamedTuple):
    """A row of the index: a node's facts, its last offset, and its member as it is stored."""

    facts: IndexedNode
    last: int
    member: bytes

    @property
    def place(self) -> str:
        """How a defect names it."""
        return f"node {self.facts.base}-{self.last}"


def rows_of(rows: Iterable[Row], subject: Subject | None = None) -> list[IndexRow]:
    """Read rows of the index; one that cannot be read is left out, and a defect of the subject."""
    read = []
    for member, score in rows:
        try:
            read.append(IndexRow(IndexedNode.of(member), int(score), member))
        except (ValueError, TypeError):
            if subject is not None:
                form = "base:count:bytes:time:newest:version"
                subject.found(f"index row {score!r}", form, repr(member), EVICT)
    return read


def _bytes_and_holes(page: RowsPage) -> tuple[int, ...] | None:
    head = stream_head(page.more[0])
    if head is None:
        return None
    rows = [row for row in rows_of(page.fresh) if head.freed < row.last <= head.sealed]
    holes = sum(row.last - row.facts.base + 1 - row.facts.messages for row in rows)
    return sum(row.facts.size for row in rows), holes


class _NodeChecks:
    """Checks the rows of the index, page by page, and their nodes.

    ``_next`` is the offset that must come next.
    """

    def __init__(self, subject: Subject, key: str) -> None:
        self._subject, self._key, self._next = subject, key, 1

    def check(self, page: RowsPage) -> Checks[None]:
        """Check a page, which begins with the last row of the one before it."""
        head = stream_head(page.more[0])
        rows = rows_of(page.rows, self._subject)
        if head is not None:
            self._check_rows(rows, head, whole=page.final)
            for part in _parts(rows, head.first):
                yield from self._check_blobs(part)

    def _check_rows(self, rows: list[IndexRow], head: StreamHead, *, whole: bool) -> None:
        """Check that rows follow each other."""
        found = self._subject.found
        at, newest, before = max(self._next, head.first), 0, 0
        for row in rows:
            facts, last, _ = row
            room = last - facts.base + 1
            if facts.base > at:
                gap = f"{at}-{facts.base - 1}"
                found(f"offsets {gap}", "a node that holds them", "none", EVICT)
            elif facts.base <= before:
                found(row.place, f"begins after {before}", f"begins at {facts.base}", EVICT)
            if not 0 <= facts.messages <= room:
                found(row.place, f"0 to {room} messages", facts.messages, EVICT)
            if facts.newest < newest:
                found(row.place, f"newest time {newest} or later", facts.newest, _BY_TIME)
            elif facts.newest > head.time and last <= head.sealed:
                expected = f"newest time {head.time}, that of the stream, or earlier"
                found(row.place, expected, facts.newest, _BY_TIME)
            at, newest, before = max(at, last + 1), max(newest, facts.newest), last
        if whole and at <= head.sealed:
            found(f"offsets {at}-{head.sealed}", "a node that holds them", "none", EVICT)
        self._next = at

    def _check_blobs(self, rows: list[IndexRow]) -> Checks[None]:
        """Check that each node exists and matches its row; unless it was replaced."""
        bases = [row.facts.base for row in rows]
        span = (rows[0].last, rows[-1].last, "BYSCORE", "WITHSCORES")
        reply, blobs = yield self._subject.read(
            ("ZRANGE", index_key(self._key), *span), ("HMGET", nodes_key(self._key), *bases)
        )
        found = dict(zip(bases, blobs, strict=True))
        for row in rows_of(zip(reply[::2], reply[1::2], strict=True)):
            if row.facts.base in found:
                fault = _fault_of(row.facts, row.last, found[row.facts.base])
                if fault:
                    cure = _BY_TIME if fault[0].startswith("newest") else EVICT
                    self._subject.found(row.place, *fault, cure)


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


def _check_stray_nodes(subject: Subject, key: str, nodes: list[bytes]) -> Checks[None]:
    """Find nodes that the index does not name, which are never read."""
    for base in nodes[::2]:
        where: Command = ("ZRANGE", index_key(key), base, "+inf", "BYSCORE", "LIMIT", 0, 1)
        length: Command = ("HSTRLEN", nodes_key(key), base)
        seen: list[tuple[Command, Any]] = [(("HGET", key, "replacing"), None)]
        if base.isdigit():
            values, row, kept = yield subject.read(_head(key), where, length)
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
                subject.found(f"node at {at}", "a row of the index", "none", _ROW_LOST)
                continue
            seen = [(where, row), (length, kept)]
        place, change = f"node at {shown(base)}", ("HDEL", nodes_key(key), base)
        what = "drops it: no reader finds it"
        subject.mend(place, "a row of the index", "none", what, seen, change)


# ── Publishes ─────────────────────────────────────────────────────────────────────────────────────
# Everything that an unfinished publish has to move is there.


_PUBLISH = re.compile(rb"\d+:\d+:\d+:\d+:\d+(?::(\d+):([01])(?::[0-9a-f.]*)?)?")
_GONE = "publish it again under another sequence, from where it came from"


def _check_publishes(subject: Subject, key: str, publishes: list[bytes]) -> Checks[None]:
    """Check unfinished publishes of a stream, and the stagings that each has to move."""
    for producer, state in zip(publishes[::2], publishes[1::2], strict=True):
        if not _PUBLISH.fullmatch(state):
            form = "sequence:first:last:index:time"
            subject.found(f"publish of {shown(producer)!r}", form, repr(state), _GONE)
        names = f"{key}:publish:".encode() + producer
        stagings = partial(_check_stagings, subject, key, producer, names)
        yield from subject.walk("LRANGE", names, stagings)


def _check_stagings(
    subject: Subject, key: str, producer: bytes, names: bytes, stagings: list[bytes]
) -> Checks[None]:
    """Check that what a publish has still to move is there.

    The first ones may have been moved already. A publish that has not begun holds none.
    """
    for staging in stagings:
        staged = f"{key}:staged:".encode() + staging
        state, listed, length, nodes = yield subject.read(
            ("HGET", f"{key}:publishing", producer),
            ("LPOS", names, staging),
            ("LLEN", names),
            ("HMGET", staged, "n", "begun"),
        )
        publish = _PUBLISH.fullmatch(state or b"")
        if listed is None or publish is None or publish[2] == b"0":
            continue
        moved = length - int(publish[1]) if publish[1] else 0
        if listed >= moved and (isinstance(nodes, Exception) or None in nodes):
            expected = f"the staging {shown(staging)!r}"
            subject.found(f"publish of {shown(producer)!r}", expected, "none", _GONE)


# ── Keys ──────────────────────────────────────────────────────────────────────────────────────────
# Which keys under the name of a stream belong to it, and which are left over.


_DAY_MS: Final = 24 * 3600 * 1000


def _check_remade(subject: Subject, owned: OwnedKey) -> Checks[None]:
    """Report a key that exists only during one call."""
    report_orphan(subject, owned.key, "nothing: it is left of a call")
    yield from ()


def _check_known(subject: Subject, owned: OwnedKey) -> Checks[None]:
    created, now = yield subject.read(("HGET", subject.key, "created"), ("TIME",))
    if created is not None:
        born = number(created) or 0
        yield from check_registered(STREAMS, owned.name, subject.ledger, born, now)


def _check_written(subject: Subject, owned: OwnedKey) -> Checks[None]:
    created = ("HGET", subject.key, "created")
    yield from check_owned(subject, owned.key, "a stream that was written", created)


def _check_publish(subject: Subject, owned: OwnedKey, producer: bytes) -> Checks[None]:
    publish = ("HGET", f"{owned.owner}:publishing", producer)
    # What belongs to a stream that was deleted is freed in steps.
    freeing = ("EXISTS", f"{owned.owner}:deleted")
    yield from check_owned(subject, owned.key, "an unfinished publish", publish, freeing)


def _check_staged(subject: Subject, owned: OwnedKey, name: bytes) -> Checks[None]:
    """Check that what is staged expires, or belongs to a publish."""
    key, staged = owned.owner, owned.key
    begun: Command = ("HGET", staged, "begun")
    expiry: Command = ("PTTL", staged)
    there, left_ms, producers, freeing = yield subject.read(
        begun, expiry, ("HKEYS", f"{key}:publishing"), ("EXISTS", f"{key}:deleted")
    )
    if left_ms != -1 or freeing:
        return
    lists = [f"{key}:publish:".encode() + producer for producer in producers]
    seen: tuple[Command, ...] = (begun, expiry, *(("LPOS", each, name) for each in lists))
    replies = yield subject.read(*seen)
    if replies[1] != -1 or any(place is not None for place in replies[2:]):
        return
    subject.mend(
        f"staging {shown(name)!r}",
        "a publish that it belongs to",
        "none, and it does not expire" if there is not None else "it does not expire",
        "lets it be published again, or expire in a day",
        zip(seen, replies, strict=True),
        ("HDEL", staged, "begun"),
        ("PEXPIRE", staged, _DAY_MS),
    )


def _check_group_key(subject: Subject, owned: OwnedKey, length: bytes, rest: bytes) -> Checks[None]:
    try:
        name, part = rest[: int(length)].decode(), rest[int(length) :]
    except UnicodeDecodeError:
        name, part = "", b"?"
    key = owned.owner
    group = group_key(key, name)
    waiter = part.removeprefix(b":box:") if part.startswith(b":box:") else None
    kind = "list" if waiter is not None else parts_of("log", "G").get(part)
    if kind is None:
        subject.nobodys(owned.key, "a part of a group", "no such part")
        return
    if not (yield from check_type(subject, owned.key, kind)):
        return
    listed: Command = ("ZSCORE", f"{key}:groups", name)
    replies = yield subject.read(
        ("EXISTS", owned.key),
        listed,
        ("HMGET", group, "next", "created", "era"),
        ("HGET", key, "era"),
        ("ZRANGE", f"{key}:deleted", 0, -1),
    )
    # A key of another type is reported where it is read.
    if not replies[0] or any(isinstance(reply, Exception) for reply in replies):
        return
    _, score, (at, created, era), now_era, eras = replies
    if score is not None:
        if waiter is not None:
            yield from _check_box(subject, group, owned.key, waiter)
    elif eras:
        # Groups of a stream that was deleted are freed in steps.
        lists = [f"{key}:deleted:{shown(era)}" for era in eras]
        seen = (listed, *(("ZSCORE", each, name) for each in lists))
        there, *scores = yield subject.read(("EXISTS", owned.key), *seen)
        if there and all(score is None for score in scores):
            gone = ((command, None) for command in seen)
            report_orphan(subject, owned.key, f"the group {name!r}", *gone)
    elif at is None or (era or b"") != (now_era or b""):
        gone_from = ((listed, None), (("HGET", group, "next"), at))
        report_orphan(subject, owned.key, f"the group {name!r}", *gone_from)
    elif not part:
        subject.mend(
            f"list of groups, {name!r}",
            "the group",
            "not listed",
            "lists the group again",
            [(listed, None)],
            ("ZADD", f"{key}:positions", 0, name),
            ("ZADD", f"{key}:groups", number(created) or 0, name),
        )


def _check_box(subject: Subject, group: str, box: bytes, waiter: bytes) -> Checks[None]:
    """Check that a box will be emptied: by its owner, or by the call that takes it back."""
    seen: tuple[Command, ...] = (
        ("ZSCORE", f"{group}:served", waiter),
        ("ZSCORE", f"{group}:waiters", waiter),
        ("HGET", group, b"w:" + waiter),
    )
    there, handed, *owner = yield subject.read(("EXISTS", box), ("HGET", group, "handed"), *seen)
    noted = b" " + (handed or b"")
    if not there or any(fact is not None for fact in owner) or b" " + waiter + b":" in noted:
        return
    subject.mend(
        f"box {shown(waiter)}",
        "a member that looks into it",
        "none",
        "lets the group take back what is in it",
        zip(seen, owner, strict=True),
        ("ZADD", f"{group}:served", 0, waiter),
    )


STREAM_KEYS: Final = KeyRules(
    "a part of a stream",
    ("log", "K"),
    (
        PartRule(":remade", "stream", _check_remade),
        PartRule("", check=_check_known),
        PartRule(":(?:tail|nodes|index)", check=_check_written),
        PartRule(r":deleted:\d+:publishing", "hash"),
        PartRule(r":deleted:\d+", "zset"),
        PartRule(":staged:(.*)", "hash", _check_staged),
        PartRule(":publish:(.*)", "list", _check_publish),
        PartRule(r":g:(\d+):(.*)", "", _check_group_key),
    ),
)

TOPIC_KEYS: Final = KeyRules("a topic", rules=(PartRule("", "hash"),))


# ── Topics ────────────────────────────────────────────────────────────────────────────────────────
# A topic knows how many partitions it has.


def check_topic(name: str, ledger: ScrubLedger) -> Checks[None]:
    """Check a topic, without its streams, which are checked as such; it need not exist."""
    ledger.begin("topic", name)
    key = topic_key(name)
    subject = Subject(key, ledger)
    replies = yield from subject.look(("HGET", key, "partitions"))
    if replies is None or replies[0] is None:
        return
    if not 1 <= (number(replies[0]) or 0) <= MAX_PARTITIONS:
        cure = f"count the streams {name}/0, {name}/1, ..., and set the field to that number"
        subject.found("field partitions", f"1 to {MAX_PARTITIONS}", repr(replies[0]), cure)
