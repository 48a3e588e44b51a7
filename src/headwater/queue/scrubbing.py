"""What must be true of a queue, and how it is checked while it is in use.

Every bundle that has a time is named in one sorted set, and its text can be read and holds as many
messages as its name says; counters are the sums; no deadline is earlier than the queue believes.
See headwater/store/scrubbing.py for how checks work.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from zlib import crc32

from headwater.queue.keys import QUEUES, queue_key
from headwater.queue.replies import PageReply, open_bundle, part_joined
from headwater.store.call import Call, Operation
from headwater.store.scrubbing import (
    PAGE,
    Checks,
    Command,
    KeyRules,
    OwnedKey,
    PartRule,
    ScrubLedger,
    Subject,
    Sweep,
    check_answers,
    check_owned,
    check_registered,
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
    queue = _Queue(name, ledger)
    head = yield from queue.check_head()
    if head is None:
        return
    yield from queue.check_sums()
    for part, priority in head.sets:
        yield from queue.check_bundles(part, priority)
    if head.priorities:
        yield from queue.check_lists()
    yield from check_answers(queue.subject, queue.head, _last_of)


def _last_of(reply: Any) -> int | None:
    head = queue_head(reply)
    return None if head is None else int(head.counts["last"])


class _Queue:
    """A queue that is checked; ``head`` is the command that reads its fields."""

    def __init__(self, name: str, ledger: ScrubLedger) -> None:
        self._key = queue_key(name)
        self.subject = Subject(self._key, ledger)
        self.head: Command = ("HMGET", self._key, "counts", "priorities")

    def _look(self, *commands: Command) -> Checks[Any]:
        """Read the fields, and what depends on the priorities, as one step; None if it cannot."""
        values, *replies = yield self.subject.read(self.head, *commands)
        head = queue_head(values)
        return None if head is None else (head, replies)

    def _recount(
        self,
        place: str,
        expected: object,
        found: object,
        what: str,
        head: QueueHead,
        **counts: float,
    ) -> None:
        change = ("HSET", self._key, "counts", head.packed(**counts))
        self.subject.mend(place, expected, found, what, [(self.head, head.raw)], change)

    def check_head(self) -> Checks[QueueHead | None]:
        """Check that fields can be read, and that no deadline is earlier than they say."""
        key, subject = self._key, self.subject
        replies = yield from subject.look(
            self.head,
            ("HLEN", f"{key}:bundles"),
            ("LLEN", f"{key}:damaged"),
            ("ZCARD", f"{key}:dead"),
            ("ZCARD", f"{key}:waiters"),
        )
        if replies is None:
            return None
        values, bundles, damaged, dead, _ = replies
        head = queue_head(values)
        if head is None:
            if values[0] is not None or bundles or dead:
                found = f"{len(values[0] or b'')} bytes, priorities={values[1]!r}"
                expected = "packed numbers, and priorities"
                subject.found("field counts", expected, found, "restore it from a backup")
            return None
        if damaged:
            name = subject.ledger.name
            cure = f"headwater queue peek {name} --state damaged shows them; purge drops them"
            subject.found("damaged", "no message that was put aside", damaged, cure)
        replies = yield from subject.look(
            self.head,
            *(("LLEN", f"{key}:ready:{priority}") for priority in head.priorities),
            *(
                ("ZRANGE", set_key(key, *timed), 0, 0, "WITHSCORES")
                for timed in head.sets
                if timed[0] != "dead"
            ),
        )
        now = None if replies is None else queue_head(replies[0])
        if replies is None or now is None:
            return None
        firsts = dict(zip(head.sets, replies[1 + len(head.priorities) :], strict=False))
        deadlines = [
            float(first[1]) for (part, _), first in firsts.items() if first and part == "unacked"
        ]
        soonest = min(deadlines, default=now.counts["soonest"])
        if soonest < now.counts["soonest"]:
            expected, found = f"{soonest:.0f} or earlier", f"{now.counts['soonest']:.0f}"
            what = f"sets it to {soonest:.0f}"
            self._recount("count soonest", expected, found, what, now, soonest=soonest)
        return now

    # ── Names ────────────────────────────────────────────────────────────────────────────────

    def check_sums(self) -> Checks[None]:
        """Compare the counters of messages with the names of bundles, and names with texts."""
        wrong = yield from settled(self.subject.ledger, self._sweep_names)
        if wrong is None:
            return
        head: QueueHead = wrong.seen
        names = zip((*TIMED, "dead"), wrong.sums, wrong.differences, strict=False)
        differ = {name: total for name, total, difference in names if difference}
        if differ:
            expected = ", ".join(f"{name} {total}" for name, total in differ.items())
            found = ", ".join(f"{name} {head.counts[name]:.0f}" for name in differ)
            what = ", ".join(f"{name} to {total}" for name, total in differ.items())
            self._recount("counts", expected, found, f"sets {what}", head, **differ)
        if wrong.differences[-1] < 0:
            yield from self._find_unnamed()

    def _sweep_names(self, _first: bool) -> Checks[Sweep | None]:
        """Add up what names say, of all sets; by one call when they are few, else page by page."""
        looked = yield from self._look()
        if looked is None:
            return None
        head: QueueHead = looked[0]
        bundles: Command = ("HLEN", f"{self._key}:bundles")
        keys = [set_key(self._key, *each) for each in head.sets]
        most = max(8, PAGE // len(keys))
        looked = yield from self._look(bundles, *(("ZRANGE", each, 0, most - 1) for each in keys))
        if looked is None or looked[0].priorities != head.priorities:
            return None
        head, (count, *pages) = looked
        totals = dict.fromkeys((*TIMED, "dead"), 0)
        digest, named = 0, 0
        for (name, _), each, members in zip(head.sets, keys, pages, strict=True):
            start, size, page = 0, most, members
            while len(page) == size:
                totals[name] += _messages_of(page)
                digest = crc32(b" ".join(page), digest) or 1
                start, size = start + size, PAGE
                command = ("ZRANGE", each, start, start + size - 1)
                looked = yield from self._look(bundles, command)
                if looked is None:
                    return None
                head, (count, page) = looked
            totals[name] += _messages_of(page)
            named += start + len(page)
        counted = (*(int(head.counts[name]) for name in totals), count)
        return Sweep(digest, (*totals.values(), named), counted, head)

    def _find_unnamed(self) -> Checks[None]:
        """Find bundles that no set names: no consumer would ever get their messages.

        A queue that is used while this reads all names is left as unsettled.
        """
        looked = yield from self._look()
        if looked is None:
            return
        head: QueueHead = looked[0]
        named: set[bytes] = set()
        unnamed: dict[bytes, int] = {}
        finished: list[bytes] = []

        def note_names(members: list[bytes]) -> None:
            named.update(member.partition(b":")[0] for member in members)

        def note_unnamed(bundles: list[bytes]) -> None:
            for number, text in zip(bundles[::2], bundles[1::2], strict=True):
                if number not in named and not text:
                    finished.append(number)
                elif number not in named:
                    # A text that cannot be read is put aside by the pop that finds it.
                    messages = [m for part in part_joined(text) for m in open_bundle(part) if m.id]
                    unnamed[number] = max(1, len(messages))

        for each in head.sets:
            yield from self.subject.walk("ZRANGE", set_key(self._key, *each), note_names)
        bundles = f"{self._key}:bundles"
        yield from self.subject.walk("HSCAN", bundles, note_unnamed, count=20)
        looked = yield from self._look()
        if looked is None or looked[0].raw != head.raw:
            self.subject.ledger.leave_unsettled()
            return
        for at in range(0, len(finished), RESTORED):
            numbers = finished[at : at + RESTORED]
            place = f"bundles {', '.join(map(shown, numbers))}"
            texts: Command = ("HMGET", bundles, *numbers)
            change: Command = ("HDEL", bundles, *numbers)
            seen, what = [(texts, [b""] * len(numbers))], "drops what is left of them"
            self.subject.mend(place, "nothing, as they are done", "no text", what, seen, change)
        bundled = list(unnamed.items())
        for at in range(0, len(bundled), RESTORED):
            self._restore(head, dict(bundled[at : at + RESTORED]))

    def _restore(self, head: QueueHead, bundles: dict[bytes, int]) -> None:
        """Report bundles that lost their names; their repair redelivers them."""
        priority = head.priorities[0] if head.priorities else "0"
        retry = f"{self._key}:retry:{priority}"
        names = [b"%b:%b:1:%d" % (at, priority.encode(), n) for at, n in bundles.items()]
        total = sum(bundles.values())
        fields: list[Any] = ["counts", head.packed(retry=head.counts["retry"] + total)]
        if not head.priorities:
            fields += ["priorities", "0,"]
        self.subject.mend(
            f"bundles {', '.join(map(shown, bundles))}",
            "a name in a sorted set",
            "none",
            f"redelivers their {total} messages",
            [(self.head, head.raw)],
            *(("ZADD", retry, 0, name) for name in names),
            ("HSET", self._key, *fields),
        )

    # ── Messages ─────────────────────────────────────────────────────────────────────────────

    def _page(self, part: str, priority: str, after: Any) -> Operation[PageReply]:
        args = (part, priority or "0", after, PAGE, CALL_BYTES)
        reply = yield Call("hw_queue_page", self._key, args, read_only=True)
        self.subject.ledger.bytes += size_of(reply)
        return PageReply.of(reply)

    def _pages(self, part: str, priority: str, visit: Callable[[PageReply], None]) -> Checks[None]:
        """Visit the messages of a list or a set, page by page."""
        after: Any = ""
        while True:
            page: PageReply = yield self._page(part, priority, after)
            visit(page)
            after = page.after
            if not after:
                return

    def check_bundles(self, part: str, priority: str) -> Checks[None]:
        """Check that each bundle of a set is there, and has as many messages as its name says."""

        def visit(page: PageReply) -> None:
            for bundle in page.bundles():
                name = _NAME.fullmatch(bundle.name)
                count = sum(1 for text in bundle.texts for m in open_bundle(text) if m.id)
                if name is None or count != int(name[4]):
                    expected = (
                        f"{int(name[4])} messages" if name else "number:priority:attempt:count"
                    )
                    place = f"{part} bundle {shown(bundle.name)}"
                    self.subject.found(place, expected, count, _LOST)

        yield from self._pages(part, priority, visit)

    def check_lists(self) -> Checks[None]:
        """Check the texts of all lists, and how many messages they have beyond one of each."""
        wrong = yield from settled(self.subject.ledger, self._sweep_lists)
        if wrong is not None:
            (total,), (counted,) = wrong.sums, wrong.counted
            what = f"sets it to {total}"
            self._recount("count bundled", total, counted, what, wrong.seen, bundled=total)

    def _sweep_lists(self, judge: bool) -> Checks[Sweep | None]:
        """Read all lists: messages beyond the first of each bundle."""
        looked = yield from self._look()
        if looked is None:
            return None
        head: QueueHead = looked[0]
        more, listed, digest = 0, 0, 1
        priority = ""

        def visit(page: PageReply) -> None:
            nonlocal more, listed, digest
            listed += len(page.found)
            for text in page.found:
                messages = open_bundle(text)
                more += len(messages) - 1
                digest = crc32(text[:17], digest)
                if judge and any(not message.id for message in messages):
                    place, found = f"ready, priority {priority}", repr(text[:40])
                    self.subject.found(place, "messages that can be read", found, _LOST)

        for priority in head.priorities:
            yield from self._pages("ready", priority, visit)
        looked = yield from self._look()
        if looked is None or looked[0].raw != head.raw or not listed:
            return None
        return Sweep(digest or 1, (more,), (int(head.counts["bundled"]),), head)


def _messages_of(names: list[bytes]) -> int:
    return sum(int(name[4]) for name in map(_NAME.fullmatch, names) if name)


# ── Key scrubbing ─────────────────────────────────────────────────────────────────────────────────
# Which keys under the name of a queue belong to it, and which are left over.


_BOX_MS: Final = 10_000


def _check_known(subject: Subject, owned: OwnedKey) -> Checks[None]:
    values, now = yield subject.read(("HMGET", owned.owner, "counts", "priorities"), ("TIME",))
    head = queue_head(values)
    # The newest number is the microsecond of the newest push, or later.
    if head is not None:
        born = head.counts["last"]
        yield from check_registered(QUEUES, owned.name, subject.ledger, born, now)


def _check_pushed(subject: Subject, owned: OwnedKey) -> Checks[None]:
    counts = ("HGET", owned.owner, "counts")
    yield from check_owned(subject, owned.key, "a queue that was pushed to", counts)


def _check_priority(subject: Subject, owned: OwnedKey, digits: bytes) -> Checks[None]:
    """Check that a priority with messages is one that pops look at."""
    fields, priority = ("HMGET", owned.owner, "counts", "priorities"), digits.decode()
    there, values = yield subject.read(("EXISTS", owned.key), fields)
    head = queue_head(values)
    if not there:
        return
    if head is None:
        if isinstance(values, list) and values[0] is None:
            yield from _check_pushed(subject, owned)
    elif priority not in head.priorities:
        known = sorted((*head.priorities, priority), key=int, reverse=True)
        subject.mend(
            f"key {shown(owned.key)}",
            "its priority among those of the queue",
            "not there",
            f"lets pops look at priority {priority}",
            [(fields, values)],
            ("HSET", owned.owner, "priorities", "".join(f"{each}," for each in known)),
        )


def _check_expires(subject: Subject, owned: OwnedKey) -> Checks[None]:
    """Check that a temporary key expires."""
    expiry = ("PTTL", owned.key)
    (left_ms,) = yield subject.read(expiry)
    if left_ms == -1:
        place, change = f"key {shown(owned.key)}", ("PEXPIRE", owned.key, _BOX_MS)
        subject.mend(place, "a time to live", "none", "lets it expire", [(expiry, -1)], change)


QUEUE_KEYS: Final = KeyRules(
    "a part of a queue",
    ("queue", "K queue.key"),
    (
        PartRule("", check=_check_known),
        PartRule(":(?:dead|bundles|damaged|failing|causes|producers|answers)", check=_check_pushed),
        PartRule(r":ready:(-?\d+)", "list", _check_priority),
        PartRule(r":(?:delayed|unacked|retry):(-?\d+)", "zset", _check_priority),
        PartRule(r":keys:\d+", "zset"),
        PartRule(":(?:box|dedupe):.*", "", _check_expires),
    ),
)
