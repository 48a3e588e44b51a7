"""What must be true of a queue, and how it is checked while it is in use.

Every bundle that has a time is named in one sorted set, and its text can be read and holds as many
messages as its name says; counters are the sums; no deadline is earlier than the queue believes.
See headwater/store/scrubbing.py for how checks work.
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final, NamedTuple
from zlib import crc32

from headwater.queue.keys import QUEUES, queue_key
from headwater.queue.replies import PageReply, open_bundle, part_joined
from headwater.store.call import Call, Operation
from headwater.store.scrubbing import (
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
    parts_of,
    read,
    report_orphan,
    settled,
    shown,
    size_of,
)

# ── Queue fields ──────────────────────────────────────────────────────────────────────────────────
# The counters and priorities of a queue, for those who check how they agree.


# The counters in the order in which they are packed; see lua/shared/10-layout.lua.
COUNTS: Final = (
    *("last", "pushed", "popped", "acked", "expired", "damaged", "unacked", "delayed", "retry"),
    *("dead", "largest", "marked", "generation", "waited", "soonest", "bundled", "asked"),
)
_PRIORITY = re.compile(r"-?\d+", re.ASCII)
TIMED: Final = ("delayed", "unacked", "retry")


class QueueHead(NamedTuple):
    """The counters of a queue by name, its priorities, and both as they are stored."""

    counts: dict[str, float]
    priorities: tuple[str, ...]
    raw: list[bytes | None]

    @property
    def sets(self) -> list[tuple[str, str]]:
        """Every sorted set of the queue, with its priority."""
        timed = [(name, priority) for name in TIMED for priority in self.priorities]
        return [*timed, ("dead", "")]

    def packed(self, **counts: float) -> bytes:
        """Return the counters as they are stored, some of them with another value."""
        old = self.raw[0] or b""
        values = list(struct.unpack(f">{len(old) // 8}d", old))
        for name, value in counts.items():
            values[COUNTS.index(name)] = value
        return struct.pack(f">{len(values)}d", *values)


def set_key(key: str, name: str, priority: str) -> str:
    """Return the key of a list or a sorted set of a queue."""
    return f"{key}:{name}:{priority}" if priority else f"{key}:{name}"


def head_command(key: str) -> Command:
    """Return the command that reads the fields of a queue."""
    return ("HMGET", key, "counts", "priorities")


def queue_head(values: list[bytes | None] | Exception) -> QueueHead | None:
    """Read the fields of a queue; None when they cannot be read, or the reply is an error."""
    if isinstance(values, Exception):
        return None
    counts, priorities = values
    if counts is None or len(counts) % 8 or len(counts) < 8 * len(COUNTS):
        return None
    numbers = struct.unpack(f">{len(counts) // 8}d", counts)
    names = tuple(p for p in (priorities or b"").decode("latin-1").split(",") if p)
    if not all(map(_PRIORITY.fullmatch, names)):
        return None
    return QueueHead(dict(zip(COUNTS, numbers, strict=False)), names, values)


# ── Scrubbing ─────────────────────────────────────────────────────────────────────────────────────


CALL_BYTES: Final = 1024 * 1024
# How many bundles one repair names again.
RESTORED: Final = 100
_NAME = re.compile(rb"(\d+):(-?\d+):(\d+):(\d+)(:v)?")
_LOST: Final = "the next pop puts it aside, and continues with the others"


def check_queue(name: str, ledger: ScrubLedger) -> Checks[None]:
    """Check a queue with its producers; it need not exist."""
    ledger.begin("queue", name)
    key = queue_key(name)
    head = yield from _check_head(key, ledger)
    if head is None:
        return
    yield from _check_sums(key, ledger)
    for part, priority in head.sets:
        yield from _check_bundles(key, part, priority, ledger)
    yield from _check_lists(key, head, ledger)
    yield from check_answers(key, ledger, head_command(key), _last_of)


def _last_of(reply: Any) -> int | None:
    head = queue_head(reply)
    return None if head is None else int(head.counts["last"])


# ── Counters ─────────────────────────────────────────────────────────────────────────────────


def _look(ledger: ScrubLedger, key: str, *commands: Command) -> Checks[Any]:
    """Read the fields, and what depends on the priorities, as one step; None when it cannot be."""
    replies = yield read(ledger, key, head_command(key), *commands)
    if isinstance(replies[0], Exception):
        return None
    head = queue_head(replies[0])
    return None if head is None else (head, replies[1:])


def _check_head(key: str, ledger: ScrubLedger) -> Checks[QueueHead | None]:
    kinds: tuple[Command, ...] = (
        head_command(key),
        ("HLEN", f"{key}:bundles"),
        ("LLEN", f"{key}:damaged"),
        ("ZCARD", f"{key}:dead"),
        ("ZCARD", f"{key}:waiters"),
    )
    replies = yield read(ledger, key, *kinds)
    if ledger.wrong_types(kinds, replies):
        return None
    values, bundles, damaged, dead, _ = replies
    head = queue_head(values)
    if head is None:
        if values[0] is not None or bundles or dead:
            found = f"{len(values[0] or b'')} bytes, priorities={values[1]!r}"
            expected = "packed numbers, and priorities"
            ledger.found("field counts", expected, found, "restore it from a backup")
        return None
    if damaged:
        cure = f"headwater queue peek {ledger.name} --state damaged shows them; purge drops them"
        ledger.found("damaged", "no message that was put aside", damaged, cure)
    keys: tuple[Command, ...] = tuple(
        command
        for priority in head.priorities
        for command in (
            ("LLEN", f"{key}:ready:{priority}"),
            *(("ZRANGE", f"{key}:{name}:{priority}", 0, 0, "WITHSCORES") for name in TIMED),
        )
    )
    looked = yield from _look(ledger, key, *keys)
    if looked is None or ledger.wrong_types(keys, looked[1]):
        return None
    now: QueueHead = looked[0]
    firsts: list[list[bytes]] = looked[1]
    deadlines = [float(first[1]) for first in firsts[2::4] if first]
    if deadlines and min(deadlines) < now.counts["soonest"]:
        counts = now.packed(soonest=min(deadlines))
        repair = _repaired(key, now, counts, f"sets it to {min(deadlines):.0f}")
        ledger.found(
            "count soonest",
            f"{min(deadlines):.0f} or earlier",
            f"{now.counts['soonest']:.0f}",
            repair=repair,
        )
    return now


def _repaired(key: str, head: QueueHead, counts: bytes, what: str) -> Repair:
    changes: tuple[Command, ...] = (("HSET", key, "counts", counts),)
    return Repair(what, key, ((head_command(key), head.raw),), changes)


def _check_sums(key: str, ledger: ScrubLedger) -> Checks[None]:
    """Compare the counters of messages with the names of bundles, and names with texts."""
    wrong = yield from settled(ledger, lambda: _sweep_names(key, ledger))
    if wrong is None:
        return
    head: QueueHead = wrong.seen
    names = (*TIMED, "dead")
    differ = {
        name: total
        for name, total, difference in zip(names, wrong.sums, wrong.differences, strict=False)
        if difference
    }
    if differ:
        counts = head.packed(**differ)
        said = ", ".join(f"{name} to {total}" for name, total in differ.items())
        repair = _repaired(key, head, counts, f"sets {said}")
        ledger.found(
            "counts",
            ", ".join(f"{name} {total}" for name, total in differ.items()),
            ", ".join(f"{name} {head.counts[name]:.0f}" for name in differ),
            repair=repair,
        )
    if wrong.differences[-1] < 0:
        yield from _find_unnamed(key, ledger)


def _sweep_names(key: str, ledger: ScrubLedger) -> Checks[Sweep | None]:
    """Add up what names say, of all sets; by one call when they are few, else page by page."""
    looked = yield from _look(ledger, key)
    if looked is None:
        return None
    head: QueueHead = looked[0]
    keys = [set_key(key, *each) for each in head.sets]
    most = max(8, PAGE // len(keys))
    pages: list[Command] = [("ZRANGE", each, 0, most - 1) for each in keys]
    looked = yield from _look(ledger, key, ("HLEN", f"{key}:bundles"), *pages)
    if looked is None or looked[0].priorities != head.priorities:
        return None
    head, (bundles, *found) = looked
    totals = dict.fromkeys((*TIMED, "dead"), 0)
    digest, named = 0, 0
    if all(len(page) < most for page in found):
        for (name, _), page in zip(head.sets, found, strict=True):
            totals[name] += _messages_of(page)
            named += len(page)
    else:
        for name, priority in head.sets:
            start, page = 0, [b""]
            while page:
                span = (start, start + PAGE - 1)
                command: Command = ("ZRANGE", set_key(key, name, priority), *span)
                looked = yield from _look(ledger, key, ("HLEN", f"{key}:bundles"), command)
                if looked is None:
                    return None
                head, (bundles, page) = looked
                totals[name] += _messages_of(page)
                named += len(page)
                start += PAGE
                digest = crc32(b" ".join(page), digest) or 1
    counted = (*(int(head.counts[name]) for name in totals), bundles)
    return Sweep(digest, (*totals.values(), named), counted, head)


def _messages_of(names: list[bytes]) -> int:
    return sum(int(found[4]) for found in map(_NAME.fullmatch, names) if found)


def _find_unnamed(key: str, ledger: ScrubLedger) -> Checks[None]:
    """Find bundles that no set names: no consumer would ever get their messages.

    A queue that is used while this reads all names is left as unsettled.
    """
    looked = yield from _look(ledger, key)
    if looked is None:
        return
    head: QueueHead = looked[0]
    named: set[bytes] = set()
    for each in head.sets:
        start, members = 0, [b""]
        while members:
            (members,) = yield read(
                ledger, key, ("ZRANGE", set_key(key, *each), start, start + PAGE - 1)
            )
            named.update(member.partition(b":")[0] for member in members)
            start += PAGE
    cursor: bytes | str = "0"
    unnamed: dict[bytes, int] = {}
    finished: list[bytes] = []
    while True:
        ((cursor, found),) = yield read(
            ledger, key, ("HSCAN", f"{key}:bundles", cursor, "COUNT", 20)
        )
        for number, text in zip(found[::2], found[1::2], strict=True):
            if number not in named and not text:
                finished.append(number)
            elif number not in named:
                # A text that cannot be read is put aside by the pop that finds it.
                messages = [m for part in part_joined(text) for m in open_bundle(part) if m.id]
                unnamed[number] = max(1, len(messages))
        if cursor == b"0":
            break
    looked = yield from _look(ledger, key)
    if looked is None or looked[0].raw != head.raw:
        ledger.leave_unsettled()
        return
    for place in range(0, len(finished), RESTORED):
        gone = finished[place : place + RESTORED]
        said = ", ".join(map(shown, gone))
        bundles = f"{key}:bundles"
        texts: Command = ("HMGET", bundles, *gone)
        changes: tuple[Command, ...] = (("HDEL", bundles, *gone),)
        empty = ((texts, [b""] * len(gone)),)
        repair = Repair("drops what is left of them", key, empty, changes)
        ledger.found(f"bundles {said}", "nothing, as they are done", "no text", repair=repair)
    numbers = list(unnamed)
    for place in range(0, len(numbers), RESTORED):
        some = {number: unnamed[number] for number in numbers[place : place + RESTORED]}
        said = ", ".join(map(shown, some))
        repair = _restored(key, head, some)
        ledger.found(f"bundles {said}", "a name in a sorted set", "none", repair=repair)


def _restored(key: str, head: QueueHead, bundles: dict[bytes, int]) -> Repair:
    """Return the repair of bundles that lost their names: they are redelivered."""
    priority = head.priorities[0] if head.priorities else "0"
    changes: list[Command] = []
    for number, count in bundles.items():
        name = b"%b:%b:1:%d" % (number, priority.encode(), count)
        changes.append(("ZADD", f"{key}:retry:{priority}", 0, name))
    total = sum(bundles.values())
    fields: list[Any] = ["counts", head.packed(retry=head.counts["retry"] + total)]
    if not head.priorities:
        fields += ["priorities", "0,"]
    changes.append(("HSET", key, *fields))
    what = f"redelivers their {total} messages"
    return Repair(what, key, ((head_command(key), head.raw),), tuple(changes))


# ── Messages ─────────────────────────────────────────────────────────────────────────────────


def _page(ledger: ScrubLedger, key: str, part: str, priority: str, after: Any) -> Operation[Any]:
    args = (part, priority or "0", after, PAGE, CALL_BYTES)
    reply = yield Call("hw_queue_page", key, args, read_only=True)
    ledger.bytes += size_of(reply)
    return PageReply.of(reply)


def _check_bundles(key: str, part: str, priority: str, ledger: ScrubLedger) -> Checks[None]:
    """Check that each bundle of a set is there, and has as many messages as its name says."""
    after: Any = ""
    while True:
        page: PageReply = yield _page(ledger, key, part, priority, after)
        for bundle in page.bundles():
            name = _NAME.fullmatch(bundle.name)
            count = sum(1 for text in bundle.texts for m in open_bundle(text) if m.id)
            if name is None or count != int(name[4]):
                expected = f"{int(name[4])} messages" if name else "number:priority:attempt:count"
                ledger.found(f"{part} bundle {shown(bundle.name)}", expected, count, _LOST)
        after = page.after
        if not after:
            return


def _check_lists(key: str, head: QueueHead, ledger: ScrubLedger) -> Checks[None]:
    judge = True

    def sweep() -> Checks[Sweep | None]:
        nonlocal judge
        found = yield from _sweep_lists(key, ledger, judge)
        judge = False
        return found

    if not head.priorities:
        return
    wrong = yield from settled(ledger, sweep)
    if wrong is not None:
        now: QueueHead = wrong.seen
        repair = _repaired(
            key, now, now.packed(bundled=wrong.sums[0]), f"sets it to {wrong.sums[0]}"
        )
        ledger.found("count bundled", wrong.sums[0], wrong.counted[0], repair=repair)


def _sweep_lists(key: str, ledger: ScrubLedger, judge: bool) -> Checks[Sweep | None]:
    """Read all lists: messages beyond the first of each bundle; the first time, check each text."""
    looked = yield from _look(ledger, key)
    if looked is None:
        return None
    head: QueueHead = looked[0]
    more, listed, digest = 0, 0, 1
    for priority in head.priorities:
        after: Any = ""
        while True:
            page: PageReply = yield _page(ledger, key, "ready", priority, after)
            for text in page.found:
                messages = open_bundle(text)
                more += len(messages) - 1
                digest = crc32(text[:17], digest)
                if judge and any(not message.id for message in messages):
                    place = f"ready, priority {priority}"
                    ledger.found(place, "messages that can be read", repr(text[:40]), _LOST)
            listed += len(page.found)
            after = page.after
            if not after:
                break
    looked = yield from _look(ledger, key)
    if looked is None or looked[0].raw != head.raw or not listed:
        return None
    return Sweep(digest or 1, (more,), (int(head.counts["bundled"]),), head)


# ── Key scrubbing ─────────────────────────────────────────────────────────────────────────────────
# Which keys under the name of a queue belong to it, and which are left over.


# Keys that only a queue that was pushed to has.
_PUSHED: Final = (
    *(b":dead", b":bundles", b":damaged", b":failing", b":causes", b":producers", b":answers"),
)
_BY_PRIORITY = re.compile(rb":(ready|delayed|unacked|retry):(-?\d+)")
_KEYS = re.compile(rb":keys:\d+")
_EXPIRING = re.compile(rb":(?:box|dedupe):.*", re.DOTALL)
_BOX_MS: Final = 10_000


def check_queue_key(found: OwnedKey, ledger: ScrubLedger) -> Checks[None]:
    """Check one key under the name of a queue."""
    key, part = queue_key(found.name), found.part
    ledger.kind, ledger.name = "queue", found.name
    if kind := parts_of("queue", "K queue.key").get(part):
        right = yield from check_type(key, found.key, kind, ledger)
        if right and part == b"":
            yield from _check_known(key, found.name, ledger)
        elif right and part in _PUSHED:
            yield from _check_pushed(key, found, ledger)
    elif by_priority := _BY_PRIORITY.fullmatch(part):
        kind = "list" if by_priority[1] == b"ready" else "zset"
        if (yield from check_type(key, found.key, kind, ledger)):
            yield from _check_priority(key, found, by_priority[2].decode(), ledger)
    elif _KEYS.fullmatch(part):
        yield from check_type(key, found.key, "zset", ledger)
    elif _EXPIRING.fullmatch(part):
        yield from _check_expires(key, found, ledger)
    else:
        ledger.found(f"key {shown(found.key)}", "a part of a queue", "no such part", NOBODYS)


def _check_known(key: str, name: str, ledger: ScrubLedger) -> Checks[None]:
    values, now = yield read(ledger, key, head_command(key), ("TIME",))
    head = queue_head(values)
    # The newest number is the microsecond of the newest push, or later.
    if head is not None:
        age_us = int(now[0]) * 1_000_000 + int(now[1]) - head.counts["last"]
        if age_us > YOUNG_US:
            yield from check_registered(QUEUES, name, ledger)


def _check_pushed(key: str, found: OwnedKey, ledger: ScrubLedger) -> Checks[None]:
    counts: Command = ("HGET", key, "counts")
    there, value = yield read(ledger, key, ("EXISTS", found.key), counts)
    if there and value is None:
        report_orphan(key, found.key, "a queue that was pushed to", ((counts, None),), ledger)


def _check_priority(key: str, found: OwnedKey, priority: str, ledger: ScrubLedger) -> Checks[None]:
    """Check that a priority with messages is one that pops look at."""
    there, values = yield read(ledger, key, ("EXISTS", found.key), head_command(key))
    head = queue_head(values)
    if not there or (head is not None and priority in head.priorities):
        return
    if head is None and isinstance(values, list) and values[0] is None:
        counts: Command = ("HGET", key, "counts")
        report_orphan(key, found.key, "a queue that was pushed to", ((counts, None),), ledger)
        return
    if head is None:
        return
    known = sorted((*head.priorities, priority), key=int, reverse=True)
    text = "".join(f"{each}," for each in known)
    changes: tuple[Command, ...] = (("HSET", key, "priorities", text),)
    what = f"lets pops look at priority {priority}"
    repair = Repair(what, key, ((head_command(key), values),), changes)
    place = f"key {shown(found.key)}"
    ledger.found(place, "its priority among those of the queue", "not there", repair=repair)


def _check_expires(key: str, found: OwnedKey, ledger: ScrubLedger) -> Checks[None]:
    """Check that a temporary key expires."""
    expiry: Command = ("PTTL", found.key)
    (left_ms,) = yield read(ledger, key, expiry)
    if left_ms == -1:
        changes: tuple[Command, ...] = (("PEXPIRE", found.key, _BOX_MS),)
        repair = Repair("lets it expire", key, ((expiry, -1),), changes)
        ledger.found(f"key {shown(found.key)}", "a time to live", "none", repair=repair)
