"""Consumer groups: reading, blocking until there are messages, order by tag, state, pause."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b
from operator import attrgetter
from typing import Final, NamedTuple

from headwater.errors import (
    HeadwaterError,
    InvalidInput,
    StoreError,
    UnknownGroup,
    UnreadableNode,
)
from headwater.kernel.headers import bytes_of, check_max_bytes
from headwater.kernel.inputs import NO_LIMITS, Duration, Limits
from headwater.log import dead_letters, reading, settling
from headwater.log.handles import GroupHandle, GroupOptions, Start, check_start
from headwater.log.keys import (
    UNPACKED_BYTES,
    box_key,
    check_block,
    check_count,
    check_ms,
    reply_limits,
)
from headwater.log.node import Run, missing, open_entries, open_runs
from headwater.log.reading import extent, fetch, fetch_part, offset_at
from headwater.log.replies import ClaimedRange, GroupReadReply, record
from headwater.log.settling import ranges_of
from headwater.log.types import GroupInfo, Message
from headwater.store.call import Argument, Call, Clock, Operation, Wait
from headwater.store.faults import Refusal


class Terms(NamedTuple):
    """When a message is redelivered, and when it is given up; None is never.

    A read takes no more once its messages have ``max_bytes``.
    """

    ack_ms: int | None
    expire_ms: int | None
    max_bytes: int = UNPACKED_BYTES

    @classmethod
    def of(
        cls, ack_ms: Duration | None, expire_ms: Duration | None, max_bytes: int | None
    ) -> Terms:
        """Accept the arguments of a caller."""
        most = min(check_max_bytes(max_bytes) or UNPACKED_BYTES, UNPACKED_BYTES)
        if expire_ms is not None:
            if ack_ms is None:
                raise InvalidInput(
                    "expire_ms needs ack_ms: only what must be acknowledged can expire"
                )
            expire_ms = check_ms(expire_ms, "expire_ms", 1)
        if ack_ms is not None:
            ack_ms = check_ms(ack_ms, "ack_ms", 1)
        return cls(ack_ms, expire_ms, most)

    def words(self) -> tuple[Argument, Argument]:
        """Return the times as the server takes them."""
        ack_ms, expire_ms, _ = self
        return ("" if ack_ms is None else ack_ms, "" if expire_ms is None else expire_ms)


# Order by tag in a group: the tags of messages are noted before these are delivered.
#
# Messages are packed in the store, which does not see their tags. So a member that finds few
# messages reads ahead, and notes their tags with its next read, which delivers them. The store
# keeps back messages that wait for others of their tag.


# What one call notes at most; the server is not held up for longer.
TAGS_PER_CALL: Final = 500
# An offset without a message, and a message that waits for no other.
_HOLE: Final = b"\xff" * 8
_NO_TAG: Final = bytes(8)


def check_terms(options: GroupOptions, count: int, ack_ms: int | None) -> None:
    """Refuse order by tag for messages that need not be acknowledged."""
    if options.ordered and count and ack_ms is None:
        raise InvalidInput(
            "a group that keeps order needs ack_ms: the next message of a tag is delivered when "
            "the one before it is acknowledged"
        )


def first_wish(group: GroupHandle, count: int, with_info: bool) -> Operation[tuple[Argument, ...]]:
    """Return what a read asks for besides messages; it notes tags when there may be too few."""
    if group.to_order and group.ahead < count:
        return (yield from next_wish(group, group.to_order, with_info))
    return ("1" if with_info else "", "1" if group.options.ordered else "", _owned(group))


def next_wish(
    group: GroupHandle, to_order: int, with_info: bool
) -> Operation[tuple[Argument, ...]]:
    """Return what a read asks for besides messages, with tags to note from an offset on."""
    notes = yield from _read_tags(group, to_order)
    ordered = "1" if group.options.ordered else ""
    return ("1" if with_info else "", ordered, _owned(group), *notes)


def note_taken(group: GroupHandle, to_order: int, count: int, messages: list[Message]) -> None:
    """Remember how a read ended; its messages are returned in the order of the stream."""
    messages.sort(key=attrgetter("offset"))
    group.to_order = to_order
    # A read that got less than it asked for has taken everything that was not kept back.
    group.ahead = max(group.ahead - len(messages), 0) if len(messages) == count else 0


def _owned(group: GroupHandle) -> str:
    held = ranges_of(group.owned()) if group.owned is not None else ()
    return " ".join(f"{first}-{last}" for first, last in held)


def _read_tags(group: GroupHandle, start: int) -> Operation[tuple[Argument, ...]]:
    """Read ahead from ``start``, the position of the group; returns the tags to note."""
    stop = start + TAGS_PER_CALL - 1
    part = yield from fetch_part(group.stream, start, stop)
    last = min(part.covered, stop)
    # What was evicted meanwhile is counted by the next read.
    if last < start or part.first > start:
        return ()
    if lost := part.missing(start, last):
        yield from settling.miss(group, part.created, lost)
    tags = bytearray(_HOLE * (last - start + 1))
    for run in part.runs:
        if run.base <= last and run.last >= start:
            rows = run.cut(start, last).to_arrow()
            digests = b"".join(map(_digest, rows.column("tag").to_pylist()))
            offsets = rows.column("offset").to_pylist()
            group.ahead += len(offsets)
            if offsets and offsets[-1] - offsets[0] + 1 == len(offsets):
                at = 8 * (offsets[0] - start)
                tags[at : at + len(digests)] = digests
                continue
            for place, offset in enumerate(offsets):
                at = 8 * (offset - start)
                tags[at : at + 8] = digests[8 * place : 8 * place + 8]
    return (part.created, start, last, bytes(tags))


@lru_cache(maxsize=10_000)
def _digest(tag: str) -> bytes:
    return blake2b(tag.encode(), digest_size=8).digest() if tag else _NO_TAG


# A blocked member reports this often: so the store knows which members are alive, and soon takes
# back what was delivered to a dead one.
WAIT_SLICE_MS = 1000


class Waiter(NamedTuple):
    """A waiting member: its name, how long it waits, which read, and how it leaves."""

    name: str
    wait_ms: int
    read_number: int
    leave: Call | None = None


NOBODY_WAITS = Waiter("", 0, 0)


class GroupRead(NamedTuple):
    """What a read took, where the stream ended then, and when the next message is due (-1: never).

    ``first`` is where the stream began, if that was asked for.
    """

    messages: list[Message]
    last: int
    due_ms: int
    first: int = 0


NOTHING_TAKEN = GroupRead([], 0, -1)


def read(
    group: GroupHandle,
    count: int,
    block_ms: Duration | float | None,
    ack_ms: Duration | None,
    expire_ms: Duration | None,
    max_bytes: int | None = None,
    *,
    with_info: bool = False,
) -> Operation[GroupRead]:
    """Take up to ``count`` messages that no other member has, no more once they have ``max_bytes``.

    With ``ack_ms`` they must be acknowledged, or they are redelivered after that time;
    ``expire_ms`` after the first delivery they are given up. Without it, there is nothing to
    acknowledge. ``with_info`` returns the bounds of the stream, too, as the same reply gave them; a
    member that was blocked is woken by a writer, and asks for the bounds then.
    """
    check_count(count)
    terms = Terms.of(ack_ms, expire_ms, max_bytes)
    check_terms(group.options, count, terms.ack_ms)
    patience = check_block(block_ms) if count else 0
    taken = NOTHING_TAKEN
    if with_info or not patience:
        taken = yield from read_now(group, count, terms, with_info=with_info)
        if taken.messages or not patience:
            return taken
    name = yield from group.take_waiter()
    messages = yield from _wait_for_messages(group, count, patience, terms, name)
    # Not reached when the wait was cancelled: then messages may still arrive for this waiter.
    group.waiters.append(name)
    taken = taken._replace(messages=messages)
    # What this read took must reach its caller.
    with contextlib.suppress(StoreError):
        if with_info:
            bounds = yield from extent(group.stream.name)
            taken = taken._replace(first=bounds.first, last=bounds.last)
    return taken


def _wait_for_messages(
    group: GroupHandle, count: int, patience: float, terms: Terms, name: str
) -> Operation[list[Message]]:
    box = box_key(group.key, group.name, name)
    leave = Call("hw_group_leave", group.key, (group.name, name), repeatable=True)
    deadline = (yield Clock()) + patience
    number = next(group.reads)
    while True:
        slices = [deadline - (yield Clock()), WAIT_SLICE_MS, terms.ack_ms or WAIT_SLICE_MS]
        wait_ms = max(0, int(min(slices)))
        waiter = Waiter(name, wait_ms, number, leave)
        taken = yield from read_now(group, count, terms, waiter, until=deadline)
        if taken.messages or not wait_ms:
            return taken.messages
        if taken.due_ms >= 0:
            wait_ms = max(1, min(wait_ms, taken.due_ms))
        command = ("BLPOP", box, f"{wait_ms / 1000:.3f}")
        boxed = yield Wait(box, command, wait_ms, messages=reading.count_unboxed, leave=leave)
        if boxed and boxed[1] != b"poke":
            messages = yield from _open_box(group, boxed[1], terms)
            if messages:
                return messages


def read_now(
    group: GroupHandle,
    count: int,
    terms: Terms,
    waiter: Waiter = NOBODY_WAITS,
    *,
    with_info: bool = False,
    until: float | None = None,
) -> Operation[GroupRead]:
    """Take what is there. When there is nothing, the waiter is registered, if there is one.

    A group may have much to skip, in many calls; after ``until`` the rest is left to another read.
    """
    if isinstance(group.options.start, dt.datetime):
        group.start_at((yield from offset_at(group.stream, group.options.start)))
    messages: list[Message] = []
    first = last = 0
    room = terms.max_bytes
    wish: tuple[Argument, ...] = ("1",) if with_info else ()
    if group.options.ordered or group.to_order:
        wish = yield from first_wish(group, count, with_info)
    while True:
        held = group.stream.held
        try:
            left = count - len(messages), room
            reply = yield from _ask(group, *left, terms, waiter, held.name, wish)
        except (StoreError, UnreadableNode):
            if messages:
                # What this read took must reach its caller.
                return GroupRead(messages, last, -1, first)
            raise
        first, last, buried = reply.first, reply.last, 0
        if group.stream.name not in group.stream.registered:
            # Housekeepers also maintain the groups of a stream that was never written.
            with contextlib.suppress(HeadwaterError):
                yield from group.stream.register()
        if reply.to_bury:
            # What this read took must reach its caller; the next read or the housekeeper buries.
            with contextlib.suppress(HeadwaterError):
                buried = yield from dead_letters.bury_given_up(group)
        if reply.boxed:
            found = yield from _open_box(group, reply.boxed, terms)
        else:
            runs, group.stream.held = open_runs(reply, held, group.stream.name)
            found, holes, lost = _deliver(reply.claims, runs)
            if lost:
                yield from settling.miss(group, reply.created, lost)
            # Skip holes to their end, so that a member that reads a few messages does not walk
            # through them.
            if holes:
                yield from _end_holes(group, reply, holes, terms)
        messages += found
        # A claim of offsets that compaction emptied holds no message, a burial may have made room
        # for new messages, and a call looks at only a part of the due ones: look further.
        if reply.unfinished and len(messages) < count and room > (has := bytes_of(found)):
            if until is not None and (yield Clock()) >= until:
                return GroupRead(messages, last, 0, first)
            room -= has
            waiter = NOBODY_WAITS if messages else waiter
        elif reply.to_order > 0 and count and not messages:
            # With order by tag, the next messages are delivered when their tags are known.
            wish = yield from next_wish(group, reply.to_order, with_info)
        elif messages or not (reply.claims or reply.boxed or buried):
            if reply.to_order >= 0:
                note_taken(group, reply.to_order, count, messages)
            return GroupRead(messages, last, reply.due_ms, first)


def _ask(
    group: GroupHandle,
    count: int,
    room: int,
    terms: Terms,
    waiter: Waiter,
    held: str,
    wish: tuple[Argument, ...],
) -> Operation[GroupReadReply]:
    args = (
        group.name,
        group.member,
        count,
        *terms.words(),
        *group.option_words,
        *waiter[:3],
        held,
        reply_limits(room),
        *wish,
    )
    call = Call(
        "hw_group_read",
        group.key,
        args,
        repeatable=terms.ack_ms is not None,
        messages=reading.count_delivered,
        leave=waiter.leave,
    )
    try:
        reply = yield call
    except Refusal as refusal:
        if refusal.code == "GRAVE":
            raise InvalidInput(
                f"group {group.name!r} has dead letters in stream {refusal.words[0]!r}; "
                "name that stream, or discard or redrive them before choosing another"
            ) from None
        raise _out_of_range(group, refusal, group.options.start) from None
    return GroupReadReply.of(reply)


def _out_of_range(group: GroupHandle, refusal: Refusal, offset: object) -> InvalidInput:
    first, last = refusal.words
    return InvalidInput(
        f"offset {offset} is beyond stream {group.stream.name!r}, which holds {first} to {last}; "
        f"use an offset up to {int(last) + 1}, 'first' or 'last'"
    )


def _open_box(group: GroupHandle, text: bytes, terms: Terms) -> Operation[list[Message]]:
    """Return the messages of a claim that was left in a member's box while it was blocked."""
    head, _, inline = text.partition(b"\n")
    claims = ClaimedRange.all_in(head)
    if inline:
        claim = claims[0]
        facts, _, body = inline.partition(b"\n")
        time, *sizes = facts.split(b":")
        cut, *more = map(int, sizes)
        # The form of an entry of the tail.
        fields = [b"k", body[:cut], b"v", body[cut:], b"t", time]
        if more:
            end = cut + more[0]
            fields = [b"h", body[cut:end], b"k", body[:cut], b"v", body[end:], b"t", time]
        entry = (b"0-%d" % claim.first, fields)
        return open_entries([entry], group.stream.name)[0].messages(claim.attempt)
    ranges = [(claim.first, claim.last) for claim in claims]
    runs = yield from fetch(group.stream, ranges, whole=False)
    messages, holes, lost = _deliver(claims, runs)
    if lost:
        yield from settling.miss(group, "", lost)
    if holes and terms.ack_ms is not None:
        yield from settling.ack(group, holes)
    return messages


def _deliver(
    claims: list[ClaimedRange], runs: list[Run]
) -> tuple[list[Message], list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the messages of claims, the offsets in them without one, and those that are lost.

    Of the others compaction has removed the messages.
    """
    messages: list[Message] = []
    holes: list[tuple[int, int]] = []
    lost: list[tuple[int, int]] = []
    for first, last, attempt in claims:
        at = len(messages)
        end = last
        for run in runs:
            if run.last >= first and run.base <= last:
                messages += run.cut(first, last).messages(attempt)
                if run.last > last:
                    end = run.hole_to(last)
        if len(messages) - at != last - first + 1:
            holes += _empty(first, end, [message.offset for message in messages[at:]])
            lost += missing(runs, first, last)
    return messages, holes, lost


def _end_holes(
    group: GroupHandle, reply: GroupReadReply, holes: list[tuple[int, int]], terms: Terms
) -> Operation[None]:
    """Acknowledge the holes that were delivered to this reader, and skip those behind them."""
    own: list[tuple[int, int]] = []
    beyond = False
    for low, high in holes:
        claimed = [(max(low, first), min(high, last)) for first, last, _ in reply.claims]
        own += [span for span in claimed if span[0] <= span[1]]
        beyond = beyond or high > reply.claims[-1].last
    if terms.ack_ms is not None and own:
        # A group that was removed since it was read has nothing to acknowledge.
        with contextlib.suppress(UnknownGroup):
            yield from settling.ack(group, own)
    if beyond:
        yield from settling.skip(group, reply.created, holes)


def _empty(first: int, last: int, present: list[int]) -> Iterator[tuple[int, int]]:
    at = first
    for offset in present:
        if offset > at:
            yield at, offset - 1
        at = offset + 1
    if at <= last:
        yield at, last


def seek(group: GroupHandle, position: Start) -> Operation[int]:
    """Set the position of the group: all before is done, all from it on is new; returns it."""
    check_start(position)
    if isinstance(position, dt.datetime):
        position = yield from offset_at(group.stream, position)
    call = Call("hw_group_seek", group.key, (group.name, str(position)), repeatable=True)
    try:
        done = 0
        while not done:
            offset, done = yield call
    except Refusal as refusal:
        if refusal.code == "RANGE":
            raise _out_of_range(group, refusal, position) from None
        raise group.unknown() from None
    return int(offset)


def info(group: GroupHandle) -> Operation[GroupInfo]:
    """Return the state of the group; raises UnknownGroup before its first read."""
    try:
        reply = yield Call("hw_group_info", group.key, (group.name,), read_only=True)
    except Refusal:
        raise group.unknown() from None
    return record(GroupInfo, reply, name=group.name)


def remove(group: GroupHandle) -> Operation[bool]:
    """Remove the group; returns whether it existed."""
    call = Call("hw_group_remove", group.key, (group.name,), repeatable=True)
    group.begun = False
    existed, done = False, 0
    while not done:
        was_there, done = yield call
        existed = existed or bool(was_there)
    return existed


def pause(group: GroupHandle, on: bool) -> Operation[bool]:
    """Pause the group or resume it; returns whether that changed anything."""
    args = (group.name, str(int(on)))
    try:
        return bool((yield Call("hw_group_pause", group.key, args, repeatable=True)))
    except Refusal:
        raise group.unknown() from None


def limit(group: GroupHandle, limits: Limits) -> Operation[Limits]:
    """Set the limits of a group, which is created if there is none; returns those before."""
    call = Call("hw_group_limit", group.key, (group.name, limits.stored()), repeatable=True)
    try:
        return Limits.of_stored((yield call))
    except Refusal:
        yield from read_now(group, 0, Terms(None, None))
        return Limits.of_stored((yield call))


def limits_of_all(parts: Iterable[Limits]) -> Limits:
    """Return the limits of a group over a topic, of those of its partitions."""
    return next((limits for limits in reversed(list(parts)) if limits), NO_LIMITS)
