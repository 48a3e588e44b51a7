"""Consumer groups: reading, acknowledging, and where a group stands."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from headwater.errors import HeadwaterError, InvalidInput
from headwater.log import dead_letters
from headwater.log.fetching import fetch
from headwater.log.handles import GroupHandle, Start, check_start
from headwater.log.keys import box_key
from headwater.log.limits import (
    REPLY_BYTES,
    check_block,
    check_count,
    check_ms,
    check_offset,
)
from headwater.log.reading import offset_at
from headwater.log.runs import Run, open_runs
from headwater.log.types import GroupInfo, Message
from headwater.store.call import Argument, Call, Clock, Operation, Wait
from headwater.store.faults import Refusal

Claim: TypeAlias = tuple[int, int, int]

# A blocked member shows itself this often: the store then knows who is alive, and what was handed
# to a member that died meanwhile is taken back soon after.
WAIT_SLICE_MS = 1000
RANGES_PER_CALL = 1000


Terms: TypeAlias = tuple[Argument, Argument]
# Its name, how many ms it will block, and whether the store knows it from an earlier call.
# Who waits, for how many ms, and in which of its reads.
Waiter: TypeAlias = tuple[str, int, int]


def check_terms(retry_ms: int | None, expire_ms: int | None) -> Terms:
    """Accept the times after which a message comes again and is given up."""
    if expire_ms is not None and retry_ms is None:
        raise InvalidInput("expire_ms needs retry_ms: only what must be acknowledged can expire")
    return (
        "" if retry_ms is None else check_ms(retry_ms, "retry_ms", 1),
        "" if expire_ms is None else check_ms(expire_ms, "expire_ms", 1),
    )


def read(
    group: GroupHandle,
    count: int,
    block_ms: float | None,
    retry_ms: int | None,
    expire_ms: int | None,
) -> Operation[list[Message]]:
    """Take up to ``count`` messages that no other member has.

    With ``retry_ms`` they must be acknowledged, or they come again after that time; ``expire_ms``
    after the first delivery they are given up. Without it, taking them is all.
    """
    check_count(count)
    terms = check_terms(retry_ms, expire_ms)
    patience = check_block(block_ms) if count else 0
    if not patience:
        return (yield from read_now(group, count, terms)).messages
    waiter = group.take_waiter()
    messages = yield from _wait_for_messages(group, count, patience, retry_ms, terms, waiter)
    # Not reached when the wait was cut short: then something may still come for this waiter.
    group.waiters.append(waiter)
    return messages


def _wait_for_messages(
    group: GroupHandle,
    count: int,
    patience: float,
    retry_ms: int | None,
    terms: Terms,
    waiter: str,
) -> Operation[list[Message]]:
    box = box_key(group.key, group.name, waiter)
    deadline = (yield Clock()) + patience
    number = next(group.reads)
    while True:
        slices = [deadline - (yield Clock()), WAIT_SLICE_MS, retry_ms or WAIT_SLICE_MS]
        wait_ms = max(0, int(min(slices)))
        taken = yield from read_now(group, count, terms, (waiter, wait_ms, number))
        if taken.messages or not wait_ms:
            return taken.messages
        if taken.due_ms >= 0:
            wait_ms = max(1, min(wait_ms, taken.due_ms))
        boxed = yield Wait(box, ("BLPOP", box, f"{wait_ms / 1000:.3f}"), wait_ms)
        if boxed and boxed[1] != b"poke":
            messages = yield from _open_box(group, boxed[1], retry_ms is not None)
            if messages:
                return messages


class Taken(NamedTuple):
    """What a read took, where the stream ended then, and when something comes due (-1: never)."""

    messages: list[Message]
    last: int
    due_ms: int


def read_now(
    group: GroupHandle, count: int, terms: Terms, waiter: Waiter = ("", 0, 0)
) -> Operation[Taken]:
    """Take what is there. When there is nothing, the waiter is noted, if there is one."""
    if isinstance(group.start, dt.datetime):
        group.start = yield from offset_at(group.stream, group.start)
    while True:
        held = group.stream.held
        reply = yield from _ask(group, count, terms, waiter, held.name)
        flat, nodes, entries, created, sealed, last, due_ms, to_bury, boxed = reply
        buried = 0
        if to_bury:
            # What this read took must reach its caller; the next read or the housekeeper buries.
            with contextlib.suppress(HeadwaterError):
                buried = yield from dead_letters.bury(group)
        if boxed:
            messages = yield from _open_box(group, boxed, terms[0] != "")
        else:
            runs, group.stream.held = open_runs(nodes, entries, created, sealed, held)
            claims = list(zip(*(iter(flat),) * 3, strict=True))
            messages, holes = _deliver(claims, runs)
            if holes and (terms[0] != "" or holes[-1][1] > claims[-1][1]):
                yield from _skip(group, created, holes)
        # A claim of offsets that compaction emptied gives no message, and what was buried may have
        # made room for new ones: look further.
        if messages or not (flat or boxed or buried):
            return Taken(messages, last, due_ms)


def _ask(
    group: GroupHandle, count: int, terms: Terms, waiter: Waiter, held: str
) -> Operation[list[Any]]:
    args = (
        group.name,
        group.member,
        count,
        *terms,
        str(group.start),
        "" if group.max_pending is None else group.max_pending,
        group.dead_words(),
        *waiter,
        held,
        REPLY_BYTES,
    )
    try:
        reply: list[Any] = yield Call("hw_group_read", group.key, args, repeatable=terms[0] != "")
    except Refusal as refusal:
        if refusal.code == "GRAVE":
            raise InvalidInput(
                f"group {group.name!r} has dead letters in stream {refusal.words[0]!r}; "
                "name that stream, or redrive them before choosing another"
            ) from None
        raise _out_of_range(group, refusal, group.start) from None
    return reply


def _out_of_range(group: GroupHandle, refusal: Refusal, offset: object) -> InvalidInput:
    first, last = refusal.words
    return InvalidInput(
        f"offset {offset} lies beyond stream {group.stream.name!r}, which holds {first} to {last}; "
        f"use an offset up to {int(last) + 1}, 'first' or 'last'"
    )


def _open_box(group: GroupHandle, text: bytes, pending: bool) -> Operation[list[Message]]:
    """Read a claim that was left in a member's box while it was blocked."""
    head, _, inline = text.partition(b"\n")
    claims = []
    for claim in head[1:].split(b","):
        first, last, attempt = claim.split(b":")
        claims.append((int(first), int(last), int(attempt)))
    if inline:
        facts, _, body = inline.partition(b"\n")
        time, _, length = facts.partition(b":")
        cut = int(length)
        offset, _, attempts = claims[0]
        return [Message(offset, body[:cut].decode(), body[cut:], int(time), attempts)]
    runs = yield from fetch(group.stream, [(first, last) for first, last, _ in claims])
    messages, holes = _deliver(claims, runs)
    if holes and pending:
        yield from ack(group, holes)
    return messages


def _deliver(claims: list[Claim], runs: list[Run]) -> tuple[list[Message], list[tuple[int, int]]]:
    """Make messages of claims; also tell the offsets that compaction emptied."""
    messages: list[Message] = []
    holes: list[tuple[int, int]] = []
    for first, last, attempt in claims:
        at = len(messages)
        end = last
        for run in runs:
            if run.last >= first and run.base <= last:
                messages += run.cut(first, last).messages(attempt)
                if run.last > last:
                    end = run.hole_to(last)
        if len(messages) - at != last - first + 1:
            holes += _missing(first, end, [message.offset for message in messages[at:]])
    return messages, holes


def _missing(first: int, last: int, present: list[int]) -> Iterator[tuple[int, int]]:
    at = first
    for offset in present:
        if offset > at:
            yield at, offset - 1
        at = offset + 1
    if at <= last:
        yield at, last


def _skip(group: GroupHandle, created: bytes, holes: list[tuple[int, int]]) -> Operation[None]:
    """Pass over holes, to their very end: who reads a few messages is not led through them."""
    for start in range(0, len(holes), RANGES_PER_CALL):
        flat = [edge for hole in holes[start : start + RANGES_PER_CALL] for edge in hole]
        yield Call("hw_group_skip", group.key, (group.name, created, *flat), repeatable=True)


def ranges_of(offsets: Iterable[int | tuple[int, int]]) -> list[tuple[int, int]]:
    """Turn offsets and (start, end) ranges into ranges, neighbours joined."""
    spans = []
    for item in offsets:
        if isinstance(item, tuple) and len(item) != 2:
            raise InvalidInput(f"a range is a pair (start, end), not {item!r}")
        start, end = item if isinstance(item, tuple) else (item, item)
        check_offset(start)
        check_offset(end, "end of a range")
        if end < start:
            raise InvalidInput(f"the range ({start}, {end}) ends before it starts; swap its ends")
        spans.append((start, end))
    spans.sort()
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and start <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def ack(group: GroupHandle, offsets: Iterable[int | tuple[int, int]]) -> Operation[int]:
    """Say that messages are done; returns how many were pending until now."""
    return (yield from _on_ranges(group, "hw_group_ack", (), offsets))


def postpone(
    group: GroupHandle, offsets: Iterable[int | tuple[int, int]], delay_ms: int
) -> Operation[int]:
    """Let pending messages come due ``delay_ms`` from now; returns how many were pending."""
    return (yield from _on_ranges(group, "hw_group_postpone", (delay_ms,), offsets))


def _on_ranges(
    group: GroupHandle,
    function: str,
    args: tuple[Argument, ...],
    offsets: Iterable[int | tuple[int, int]],
) -> Operation[int]:
    ranges = ranges_of(offsets)
    total = 0
    try:
        for start in range(0, len(ranges), RANGES_PER_CALL):
            flat = [edge for span in ranges[start : start + RANGES_PER_CALL] for edge in span]
            total += yield Call(function, group.key, (group.name, *args, *flat), repeatable=True)
    except Refusal:
        raise group.unknown() from None
    return total


def seek(group: GroupHandle, position: Start) -> Operation[int]:
    """Set where the group stands: all before is done, all from there on is new; returns where."""
    check_start(position)
    if isinstance(position, dt.datetime):
        position = yield from offset_at(group.stream, position)
    try:
        offset: int = yield Call(
            "hw_group_seek", group.key, (group.name, str(position)), repeatable=True
        )
    except Refusal as refusal:
        if refusal.code == "RANGE":
            raise _out_of_range(group, refusal, position) from None
        raise group.unknown() from None
    return offset


def info(group: GroupHandle) -> Operation[GroupInfo]:
    """Say where the group stands."""
    try:
        reply = yield Call("hw_group_info", group.key, (group.name,), read_only=True)
    except Refusal:
        raise group.unknown() from None
    position, ack_offset, pending, missed, expired, dead, most, letters, created, gaps = reply[:10]
    members = reply[13]
    return GroupInfo(
        name=group.name,
        next=position,
        ack_offset=ack_offset,
        pending=pending,
        lag=max(reply[12] - max(position, reply[11]) + 1, 0),
        missed=missed,
        gaps=tuple(_gap(gap) for gap in gaps.split()),
        expired=expired,
        dead=dead,
        max_pending=most or None,
        dead_letters=letters.decode() or None,
        waiting=reply[10],
        members={members[i].decode(): int(members[i + 1]) for i in range(0, len(members), 2)},
        created_ms=created,
    )


def _gap(text: bytes) -> tuple[int, int]:
    first, _, last = text.partition(b"-")
    return int(first), int(last)


def remove(group: GroupHandle) -> Operation[bool]:
    """End the group; returns whether it existed."""
    return bool((yield Call("hw_group_remove", group.key, (group.name,), repeatable=True)))
