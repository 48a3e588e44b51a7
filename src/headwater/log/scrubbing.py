"""What must be true of a stream, and how it is checked while it is in use.

Nodes and their index agree one to one and follow each other up to ``sealed``; the tail continues
from there to ``last``, and not beyond; bytes and checksums are right; the counters are the sums;
what producers were answered is in the stream. See headwater/store/scrubbing.py for how checks work.
"""

from __future__ import annotations

from typing import Any

from headwater.errors import UnreadableNode
from headwater.headers import check_stored
from headwater.log import group_scrubbing, node_scrubbing, publish_scrubbing
from headwater.log.keys import index_key, nodes_key, stream_key, tail_key
from headwater.log.node_scrubbing import CALL_BYTES, rows_command, rows_of
from headwater.log.runs import open_entries
from headwater.log.stream_fields import FIELDS, StreamHead, head_command, stream_head, tidy_call
from headwater.store.answers_scrubbing import check_answers
from headwater.store.scrubbing import (
    EVICT,
    PAGE,
    Checks,
    Command,
    Repair,
    ScrubLedger,
    number,
    read,
)


def check_stream(name: str, ledger: ScrubLedger) -> Checks[None]:
    """Check a stream with its producers, publishes and groups; it need not exist."""
    ledger.begin("stream", name)
    key = stream_key(name)
    head = yield from _check_head(key, ledger)
    if head is None:
        return
    if not head.replacing:
        yield from node_scrubbing.check_nodes(name, ledger)
    yield from _check_tail(key, head, ledger)
    yield from check_answers(key, ledger, ("HGET", key, "last"), number)
    yield from publish_scrubbing.check_publishes(key, ledger)
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
        yield from node_scrubbing.check_stray_nodes(key, ledger)
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
