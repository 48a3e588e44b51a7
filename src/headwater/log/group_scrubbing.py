"""What must be true of a group, and how it is checked while its members read.

Pending ranges do not overlap, are below ``next``, and are what ``pending`` counts; each is either
due at a time or waits for its burial; dead letters are what ``buried`` counts, and are in their
stream; blocked members are known to the writers of the stream.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

from headwater.log.keys import group_key, stream_key
from headwater.log.retention import MEMBER_MS, PRODUCER_MS
from headwater.store.call import Call
from headwater.store.scrubbing import (
    PAGE,
    Checks,
    Command,
    Repair,
    ScrubLedger,
    Sweep,
    number,
    read,
    settled,
    shown,
)

# ── Stream fields ─────────────────────────────────────────────────────────────────────────────────
# The fields of a stream as numbers, for those who check how they agree.


COUNTERS: Final = ("bytes", "holes")
NUMBERS: Final = ("first", "last", "sealed", "cold", "time", "created", "freed", *COUNTERS)
FIELDS: Final = (*NUMBERS, "replacing")


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


def tidy_call(key: str, place: int) -> Call:
    """Return the call by which a stream, and groups from a place on, complete what was left."""
    args = (PRODUCER_MS, MEMBER_MS, place)
    return Call("hw_stream_tidy", key, args, repeatable=True)


def head_command(key: str) -> Command:
    """Return the command that reads the fields of a stream."""
    return ("HMGET", key, *FIELDS)


def stream_head(values: list[bytes | None] | Exception) -> StreamHead | None:
    """Return the fields of a stream as numbers; None when one is none, or the reply an error."""
    if isinstance(values, Exception):
        return None
    defaults = {"first": 1}
    numbers = [
        number(value, defaults.get(name, 0)) for name, value in zip(NUMBERS, values, strict=False)
    ]
    if None in numbers:
        return None
    return StreamHead._make((*numbers, values))


# ── Group scrubbing ───────────────────────────────────────────────────────────────────────────────


_RANGE = re.compile(rb"(\d+):(\d+):(\d+):(\d+)")
_HANDED = re.compile(rb"(\S+):(\d+):(\d+):(\d+):(\d+):(\d+) ")
_SEEK: Final = "headwater stream seek sets it to where it has to continue"


class _Pending(NamedTuple):
    """A pending range, and how it is stored."""

    first: int
    last: int
    attempt: int
    expire: int
    member: bytes


def check_groups(stream: str, ledger: ScrubLedger) -> Checks[None]:
    """Check all groups of a stream."""
    key, start = stream_key(stream), 0
    while True:
        (names,) = yield read(ledger, key, ("ZRANGE", f"{key}:groups", start, start + PAGE - 1))
        if ledger.wrong_types((("ZRANGE", f"{key}:groups"),), (names,)):
            return
        for name in names:
            try:
                yield from _check_group(stream, name.decode(), ledger)
            except UnicodeDecodeError:
                cure = "find out who wrote it; ZREM takes it off"
                ledger.found("list of groups", "names in UTF-8", repr(name), cure)
        if len(names) < PAGE:
            return
        start += PAGE


def _check_group(stream: str, name: str, ledger: ScrubLedger) -> Checks[None]:
    ledger.begin("group", f"{name} of {stream}")
    key = stream_key(stream)
    group = group_key(key, name)
    commands: tuple[Command, ...] = (
        ("HMGET", group, "next", "pending", "due", "handed", "era", "torn", "seeking"),
        ("HMGET", key, "last", "waiting", "era"),
        ("ZRANK", f"{key}:groups", name),
        ("ZCARD", f"{group}:pending"),
        ("ZCARD", f"{group}:due"),
        ("ZCARD", f"{group}:expired"),
        ("ZRANGE", f"{group}:due", 0, 0, "WITHSCORES"),
        ("ZCARD", f"{group}:waiters"),
        ("ZCARD", f"{group}:dead"),
    )
    replies = yield read(ledger, key, *commands)
    if ledger.wrong_types(commands, replies):
        return
    values, (last, waiting, era), rank, pending, due, expired, soonest, waiters, _ = replies
    if rank is None:
        return
    tidy = tidy_call(key, rank)
    if values[0] is None or (values[4] or b"") != (era or b""):
        repair = Repair("takes it off the list of groups", key, call=tidy)
        ledger.found("fields", "a group", "nothing", repair=repair)
        return
    if any(number(value) is None for value in (*values[:3], *values[5:])):
        said = ", ".join(repr(value) for value in values)
        ledger.found("fields", "numbers", said, _SEEK)
        return
    if int(values[5] or 0) or int(values[6] or 0):
        repair = Repair("completes it", key, call=tidy)
        ledger.found("fields", "no call that stopped half-way", "one", repair=repair)
        return
    end, at = number(last) or 0, number(values[0]) or 0
    if not 1 <= at <= end + 1:
        ledger.found("field next", f"1 to {end + 1}", at, _SEEK)
    _check_due_field(key, group, values[2], soonest, ledger)
    if waiters and f" {name} ".encode() not in (waiting or b""):
        _report_waiting(key, name, group, waiting, waiters, ledger)
    if pending != due + expired:
        yield from _check_times(key, group, ledger)
    yield from _check_position(key, name, group, ledger)
    yield from _check_pending(key, group, ledger)
    yield from _check_dead(key, group, ledger)


def _check_position(key: str, name: str, group: str, ledger: ScrubLedger) -> Checks[None]:
    """Check that retention waits for what the group needs: its stored bound is not above it."""
    commands: tuple[Command, ...] = (
        ("ZSCORE", f"{key}:positions", name),
        ("ZRANGE", f"{group}:pending", 0, 0, "WITHSCORES"),
        ("HMGET", group, "next", "handed", "abandoned"),
    )
    replies = yield read(ledger, key, *commands)
    if ledger.wrong_types(commands, replies):
        return
    bound, oldest, (at, handed, abandoned) = replies
    if bound is None or at is None or abandoned:
        return
    boxed = _HANDED.match(handed or b"")
    needed = float(oldest[1]) if oldest else int(boxed[3]) if boxed else number(at) or 0
    if float(bound) > needed:
        changes: tuple[Command, ...] = (("ZADD", f"{key}:positions", str(needed), name),)
        repair = Repair(f"sets it to {needed:.0f}", key, ((commands[0], bound),), changes)
        expected = f"at most {needed:.0f}, which the group needs"
        ledger.found("position for retention", expected, shown(bound), repair=repair)


def _check_due_field(
    key: str, group: str, field: bytes | None, soonest: list[bytes], ledger: ScrubLedger
) -> None:
    """Check that no range comes due before the field says: it would be found late."""
    if not soonest or not (number(field) or 0) > float(soonest[1]):
        return
    changes: tuple[Command, ...] = (("HDEL", group, "due"),)
    condition = (("HGET", group, "due"), field)
    repair = Repair("forgets it; the next read finds it out", key, (condition,), changes)
    said = (field or b"").decode()
    ledger.found("field due", f"{float(soonest[1]):.0f} or earlier", said, repair=repair)


def _report_waiting(
    key: str, name: str, group: str, waiting: bytes | None, waiters: int, ledger: ScrubLedger
) -> None:
    """Report blocked members that no writer serves: the stream does not name their group."""
    changes: tuple[Command, ...] = (
        ("HSET", key, "waiting", (waiting or b" ") + f"{name} ".encode()),
    )
    expected = ((("HGET", key, "waiting"), waiting), (("ZCARD", f"{group}:waiters"), waiters))
    repair = Repair("names the group there", key, expected, changes)
    found = f"not named, though {waiters} members are blocked"
    ledger.found("field waiting of the stream", "the group", found, repair=repair)


# ── Pending ranges ───────────────────────────────────────────────────────────────────────────


def _check_pending(key: str, group: str, ledger: ScrubLedger) -> Checks[None]:
    judge = True

    def sweep() -> Checks[Sweep | None]:
        nonlocal judge
        found = yield from _sweep_pending(key, group, ledger, judge)
        judge = False
        return found

    wrong = yield from settled(ledger, sweep)
    if wrong is None:
        return
    was = (((*_counters(group),), wrong.seen),)
    changes: tuple[Command, ...] = (("HINCRBY", group, "pending", wrong.differences[0]),)
    repair = Repair(f"sets pending to {wrong.sums[0]}", key, was, changes)
    ledger.found("field pending", wrong.sums[0], wrong.counted[0], repair=repair)


def _counters(group: str) -> Command:
    return ("HMGET", group, "pending", "next", "handed")


def _sweep_pending(key: str, group: str, ledger: ScrubLedger, judge: bool) -> Checks[Sweep | None]:
    """Add up the pending ranges, page by page; the first time, check each range as well."""
    start, digest, total, before = "-inf", 0, 0, b""
    while True:
        page: Command = ("ZRANGE", f"{group}:pending", start, "+inf", "BYSCORE")
        page = (*page, "LIMIT", 0, PAGE, "WITHSCORES")
        fields, reply = yield read(ledger, key, _counters(group), page)
        pending, at, handed = fields
        if pending is None or isinstance(reply, Exception):
            return None
        ranges = _ranges(reply, ledger if judge else None)
        total += sum(r.last - r.first + 1 for r in ranges if r.member != before)
        if judge:
            _check_ranges(ranges, number(at) or 0, ledger)
            yield from _check_time_of(key, group, ranges, ledger)
        if len(reply) < 2 * PAGE or not ranges:
            for _, _, first, last, _, _ in _HANDED.findall(handed or b""):
                total += int(last) - int(first) + 1
            return Sweep(digest, (total,), (number(pending) or 0,), fields)
        digest = crc32(b" ".join(reply), digest) or 1
        start, before = str(ranges[-1].first), ranges[-1].member


def _ranges(reply: list[bytes], ledger: ScrubLedger | None) -> list[_Pending]:
    ranges = []
    for member, score in zip(reply[::2], reply[1::2], strict=True):
        found = _RANGE.fullmatch(member)
        if found and int(found[1]) == float(score) and int(found[1]) <= int(found[2]):
            ranges.append(_Pending._make((*map(int, found.groups()), member)))
        elif ledger is not None:
            form = f"start:end:attempt:expire from {score.decode()} on"
            ledger.found(f"pending range {score.decode()}", form, repr(member), _SEEK)
    return ranges


def _check_ranges(ranges: list[_Pending], at: int, ledger: ScrubLedger) -> None:
    """Check that ranges, read in one step, do not overlap and are below the next offset."""
    for place, found in enumerate(ranges):
        name = f"pending range {found.first}-{found.last}"
        if found.last >= at:
            ledger.found(name, f"below next, {at}", f"up to {found.last}", _SEEK)
        if place and ranges[place - 1].last >= found.first:
            other = ranges[place - 1]
            said = f"{other.first}-{other.last} overlaps it"
            ledger.found(name, "apart from all others", said, _SEEK)


def _check_time_of(
    key: str, group: str, ranges: list[_Pending], ledger: ScrubLedger
) -> Checks[None]:
    """Check that each range is due at a time or waits for its burial, and not both."""
    if not ranges:
        return
    starts = [r.first for r in ranges]
    due, expired, there, time = yield read(
        ledger,
        key,
        ("ZMSCORE", f"{group}:due", *starts),
        ("ZMSCORE", f"{group}:expired", *starts),
        ("ZMSCORE", f"{group}:pending", *(r.member for r in ranges)),
        ("TIME",),
    )
    for place, found in enumerate(ranges):
        if there[place] is None or (due[place] is None) != (expired[place] is None):
            continue
        name = f"pending range {found.first}-{found.last}"
        expected = (
            (("ZSCORE", f"{group}:pending", found.member), there[place]),
            (("ZSCORE", f"{group}:due", found.first), due[place]),
            (("ZSCORE", f"{group}:expired", found.first), expired[place]),
        )
        changes: tuple[Command, ...]
        if due[place] is None:
            changes = (("ZADD", f"{group}:due", int(time[0]) * 1000, found.first),)
            changes += (("HDEL", group, "due"),)
            repair = Repair("makes it due now", key, expected, changes)
            said = "neither: it is never redelivered"
        else:
            changes = (("ZREM", f"{group}:due", found.first),)
            repair = Repair("leaves it to its burial", key, expected, changes)
            said = "both"
        ledger.found(name, "a time when it is due, or a place to be buried", said, repair=repair)


def _check_times(key: str, group: str, ledger: ScrubLedger) -> Checks[None]:
    """Find times of ranges that are not pending."""
    for part in ("due", "expired"):
        cursor: bytes | str = "0"
        while True:
            ((cursor, found),) = yield read(
                ledger, key, ("ZSCAN", f"{group}:{part}", cursor, "COUNT", PAGE)
            )
            for start in found[::2]:
                yield from _check_time(key, group, part, start, ledger)
            if cursor == b"0":
                break


def _check_time(key: str, group: str, part: str, start: bytes, ledger: ScrubLedger) -> Checks[None]:
    seen: tuple[Command, ...] = (
        ("ZRANGE", f"{group}:pending", start, start, "BYSCORE"),
        ("ZSCORE", f"{group}:{part}", start),
    )
    ranges, score = yield read(ledger, key, *seen)
    if score is None or (ranges and not isinstance(ranges, Exception)):
        return
    changes: tuple[Command, ...] = (("ZREM", f"{group}:{part}", start),)
    expected = ((seen[0], ranges), (seen[1], score))
    repair = Repair("drops it", key, expected, changes)
    ledger.found(f"{part} {shown(start)}", "a pending range", "none", repair=repair)


# ── Dead letters ─────────────────────────────────────────────────────────────────────────────


def _check_dead(key: str, group: str, ledger: ScrubLedger) -> Checks[None]:
    highest = 0

    def sweep() -> Checks[Sweep | None]:
        nonlocal highest
        found, newest = yield from _sweep_dead(key, group, ledger)
        highest = max(highest, newest)
        return found

    wrong = yield from settled(ledger, sweep)
    if wrong is not None:
        was = ((("HMGET", group, "buried", "grave"), wrong.seen),)
        changes: tuple[Command, ...] = (("HINCRBY", group, "buried", wrong.differences[0]),)
        repair = Repair(f"sets buried to {wrong.sums[0]}", key, was, changes)
        ledger.found("field buried", wrong.sums[0], wrong.counted[0], repair=repair)
    if highest:
        yield from _check_grave(key, group, highest, ledger)


def _sweep_dead(key: str, group: str, ledger: ScrubLedger) -> Checks[tuple[Sweep, int]]:
    """Add up the dead letters, page by page; returns the offset of the newest as well."""
    start, digest, total, before, highest = "-inf", 0, 0, b"", 0
    while True:
        page: Command = ("ZRANGE", f"{group}:dead", start, "+inf", "BYSCORE")
        page = (*page, "LIMIT", 0, PAGE, "WITHSCORES")
        fields, reply = yield read(ledger, key, ("HMGET", group, "buried", "grave"), page)
        for member in reply[::2]:
            found = _RANGE.fullmatch(member)
            if found and member != before:
                at, first, last = (int(n) for n in found.groups()[:3])
                total += last - first + 1
                highest = max(highest, at + last - first)
        if len(reply) < 2 * PAGE:
            return Sweep(digest, (total,), (number(fields[0]) or 0,), fields), highest
        digest = crc32(b" ".join(reply), digest) or 1
        start, before = reply[-1].decode(), reply[-2]


def _check_grave(key: str, group: str, highest: int, ledger: ScrubLedger) -> Checks[None]:
    """Check that the stream of the dead letters reaches to the newest of them; it only grows."""
    grave, letters = yield read(ledger, key, ("HGET", group, "grave"), ("ZCARD", f"{group}:dead"))
    if not letters:
        return
    if grave is None or isinstance(grave, Exception):
        ledger.found("field grave", "the stream of the dead letters", "none", "discard them")
        return
    other = f"hw:s:{{{grave.decode()}}}"
    (last,) = yield read(ledger, other, ("HGET", other, "last"))
    end: Any = 0 if isinstance(last, Exception) else number(last)
    if (end or 0) < highest:
        cure = "redrive them, as the stream itself may still hold them, or discard them"
        ledger.found(
            "dead letters", f"letters up to offset {highest} in {grave.decode()!r}", end, cure
        )
