"""What must be true of a group, and how it is checked while its members read.

Pending ranges do not overlap, are below ``next``, and are what ``pending`` counts; each is either
due at a time or waits for its burial; dead letters are what ``buried`` counts, and are in their
stream; blocked members are known to the writers of the stream.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final, NamedTuple

from headwater.log.keys import group_key, stream_key
from headwater.log.retention import MEMBER_MS, PRODUCER_MS
from headwater.store.call import Call
from headwater.store.scrubbing import (
    Checks,
    Repair,
    Row,
    RowsPage,
    ScrubLedger,
    Subject,
    Sums,
    check_sums,
    number,
    shown,
)

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

    @property
    def place(self) -> str:
        """How a defect names it."""
        return f"pending range {self.first}-{self.last}"


def tidy_call(key: str, place: int) -> Call:
    """Return the call by which a stream, and groups from a place on, complete what was left."""
    args = (PRODUCER_MS, MEMBER_MS, place)
    return Call("hw_stream_tidy", key, args, repeatable=True)


def check_groups(stream: str, ledger: ScrubLedger) -> Checks[None]:
    """Check all groups of a stream."""
    subject = Subject(stream_key(stream), ledger)

    def visit(names: list[bytes]) -> Checks[None]:
        for name in names:
            try:
                yield from _check_group(subject, stream, name.decode())
            except UnicodeDecodeError:
                cure = "find out who wrote it; ZREM takes it off"
                subject.found("list of groups", "names in UTF-8", repr(name), cure)

    yield from subject.walk("ZRANGE", f"{stream_key(stream)}:groups", visit)


def _check_group(subject: Subject, stream: str, name: str) -> Checks[None]:
    subject.ledger.begin("group", f"{name} of {stream}")
    key = stream_key(stream)
    group = group_key(key, name)
    replies = yield from subject.look(
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
    if replies is None:
        return
    values, (last, waiting, era), rank, pending, due, expired, soonest, waiters, _ = replies
    at, _, next_due, _, own_era, torn, seeking = values
    if rank is None:
        return

    def tidies(what: str, expected: str, actual: str) -> None:
        repair = Repair(what, key, call=tidy_call(key, rank))
        subject.ledger.found("fields", expected, actual, repair=repair)

    if at is None or (own_era or b"") != (era or b""):
        tidies("takes it off the list of groups", "a group", "nothing")
        return
    if any(number(value) is None for value in (*values[:3], torn, seeking)):
        subject.found("fields", "numbers", ", ".join(map(repr, values)), _SEEK)
        return
    if int(torn or 0) or int(seeking or 0):
        tidies("completes it", "no call that stopped half-way", "one")
        return
    end, begin = number(last) or 0, number(at) or 0
    if not 1 <= begin <= end + 1:
        subject.found("field next", f"1 to {end + 1}", begin, _SEEK)
    # A range that comes due before the field says would be found late.
    if soonest and (number(next_due) or 0) > float(soonest[1]):
        subject.mend(
            "field due",
            f"{float(soonest[1]):.0f} or earlier",
            shown(next_due),
            "forgets it; the next read finds it out",
            [(("HGET", group, "due"), next_due)],
            ("HDEL", group, "due"),
        )
    # Writers serve blocked members of the groups that the stream names.
    if waiters and f" {name} ".encode() not in (waiting or b""):
        subject.mend(
            "field waiting of the stream",
            "the group",
            f"not named, though {waiters} members are blocked",
            "names the group there",
            [(("HGET", key, "waiting"), waiting), (("ZCARD", f"{group}:waiters"), waiters)],
            ("HSET", key, "waiting", (waiting or b" ") + f"{name} ".encode()),
        )
    if pending != due + expired:
        for part in ("due", "expired"):
            yield from subject.walk(
                "ZSCAN", f"{group}:{part}", partial(_check_times, subject, group, part)
            )
    yield from _check_position(subject, key, name, group)
    yield from check_sums(
        subject,
        Sums(
            group,
            ("pending",),
            ("next", "handed"),
            f"{group}:pending",
            _pending_messages,
            partial(_check_ranges, subject, group),
        ),
    )
    yield from _check_dead(subject, group)


def _check_position(subject: Subject, key: str, name: str, group: str) -> Checks[None]:
    """Check that retention waits for what the group needs: its stored bound is not above it."""
    score = ("ZSCORE", f"{key}:positions", name)
    replies = yield from subject.look(
        score,
        ("ZRANGE", f"{group}:pending", 0, 0, "WITHSCORES"),
        ("HMGET", group, "next", "handed", "abandoned"),
    )
    if replies is None:
        return
    bound, oldest, (at, handed, abandoned) = replies
    if bound is None or at is None or abandoned:
        return
    boxed = _HANDED.match(handed or b"")
    needed = float(oldest[1]) if oldest else int(boxed[3]) if boxed else number(at) or 0
    if float(bound) > needed:
        subject.mend(
            "position for retention",
            f"at most {needed:.0f}, which the group needs",
            shown(bound),
            f"sets it to {needed:.0f}",
            [(score, bound)],
            ("ZADD", f"{key}:positions", str(needed), name),
        )


# ── Pending ranges ───────────────────────────────────────────────────────────────────────────


def _ranges(rows: list[Row], subject: Subject | None = None) -> list[_Pending]:
    """Return ranges; one that cannot be read is left out, and a defect of the subject."""
    ranges = []
    for member, score in rows:
        match = _RANGE.fullmatch(member)
        if match and int(match[1]) == float(score) and int(match[1]) <= int(match[2]):
            ranges.append(_Pending._make((*map(int, match.groups()), member)))
        elif subject is not None:
            form = f"start:end:attempt:expire from {score.decode()} on"
            subject.found(f"pending range {score.decode()}", form, repr(member), _SEEK)
    return ranges


def _pending_messages(page: RowsPage) -> tuple[int, ...] | None:
    """Count the messages of ranges, and at the end those that were handed to blocked members."""
    pending, _, handed = page.fields
    if pending is None:
        return None
    boxes = _HANDED.findall(handed or b"") if page.final else []
    return (
        sum(r.last - r.first + 1 for r in _ranges(page.fresh))
        + sum(int(last) - int(first) + 1 for _, _, first, last, _, _ in boxes),
    )


def _check_ranges(subject: Subject, group: str, page: RowsPage) -> Checks[None]:
    """Check that ranges, read in one step, do not overlap and are below the next offset.

    Each is due at a time or waits for its burial, and not both.
    """
    at = number(page.fields[1]) or 0
    ranges = _ranges(page.rows, subject)
    for before, pending in zip([None, *ranges], ranges, strict=False):
        if pending.last >= at:
            subject.found(pending.place, f"below next, {at}", f"up to {pending.last}", _SEEK)
        if before and before.last >= pending.first:
            said = f"{before.first}-{before.last} overlaps it"
            subject.found(pending.place, "apart from all others", said, _SEEK)
    if not ranges:
        return
    starts = [r.first for r in ranges]
    *facts, time = yield subject.read(
        ("ZMSCORE", f"{group}:pending", *(r.member for r in ranges)),
        ("ZMSCORE", f"{group}:due", *starts),
        ("ZMSCORE", f"{group}:expired", *starts),
        ("TIME",),
    )
    for pending, there, due, expired in zip(ranges, *facts, strict=True):
        if there is None or (due is None) != (expired is None):
            continue
        expected = "a time when it is due, or a place to be buried"
        seen = (
            (("ZSCORE", f"{group}:pending", pending.member), there),
            (("ZSCORE", f"{group}:due", pending.first), due),
            (("ZSCORE", f"{group}:expired", pending.first), expired),
        )
        mend = partial(subject.mend, pending.place, expected)
        if due is None:
            add = ("ZADD", f"{group}:due", int(time[0]) * 1000, pending.first)
            said = "neither: it is never redelivered"
            mend(said, "makes it due now", seen, add, ("HDEL", group, "due"))
        else:
            change = ("ZREM", f"{group}:due", pending.first)
            mend("both", "leaves it to its burial", seen, change)


def _check_times(subject: Subject, group: str, part: str, times: list[bytes]) -> Checks[None]:
    """Find times of ranges that are not pending."""
    for start in times[::2]:
        seen = (
            ("ZRANGE", f"{group}:pending", start, start, "BYSCORE"),
            ("ZSCORE", f"{group}:{part}", start),
        )
        ranges, score = yield subject.read(*seen)
        if score is not None and (not ranges or isinstance(ranges, Exception)):
            subject.mend(
                f"{part} {shown(start)}",
                "a pending range",
                "none",
                "drops it",
                zip(seen, (ranges, score), strict=True),
                ("ZREM", f"{group}:{part}", start),
            )


# ── Dead letters ─────────────────────────────────────────────────────────────────────────────


def _letters(rows: list[Row]) -> list[tuple[int, int]]:
    """Return where letters lie in their stream: the first offset, and how many there are."""
    ranges = [match for member, _ in rows if (match := _RANGE.fullmatch(member))]
    return [(int(found[1]), int(found[3]) - int(found[2]) + 1) for found in ranges]


def _check_dead(subject: Subject, group: str) -> Checks[None]:
    """Check how many dead letters there are, and that their stream reaches to the newest."""
    highest = 0

    def note(page: RowsPage) -> None:
        nonlocal highest
        highest = max([highest, *(at + count - 1 for at, count in _letters(page.rows))])

    def letters(page: RowsPage) -> tuple[int, ...]:
        return (sum(count for _, count in _letters(page.fresh)),)

    yield from check_sums(
        subject, Sums(group, ("buried",), ("grave",), f"{group}:dead", letters, note)
    )
    if highest:
        yield from _check_grave(subject, group, highest)


def _check_grave(subject: Subject, group: str, highest: int) -> Checks[None]:
    """Check that the stream of the dead letters reaches to the newest of them; it only grows."""
    grave, letters = yield subject.read(("HGET", group, "grave"), ("ZCARD", f"{group}:dead"))
    if not letters:
        return
    if grave is None or isinstance(grave, Exception):
        subject.found("field grave", "the stream of the dead letters", "none", "discard them")
        return
    other = stream_key(grave.decode())
    (last,) = yield Subject(other, subject.ledger).read(("HGET", other, "last"))
    end: Any = 0 if isinstance(last, Exception) else number(last)
    if (end or 0) < highest:
        cure = "redrive them, as the stream itself may still hold them, or discard them"
        expected = f"letters up to offset {highest} in {grave.decode()!r}"
        subject.found("dead letters", expected, end, cure)
