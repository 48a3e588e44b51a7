"""Dead letters: what a group gave up lies in a stream of its own, to be looked at and redriven."""

from __future__ import annotations

import hashlib
from typing import Any

from headwater.log.fetching import fetch
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.limits import MAX_BATCH_MESSAGES, check_count
from headwater.log.types import DeadLetter, Message, Redriven
from headwater.log.writing import write_many
from headwater.store.call import Call, Operation
from headwater.store.faults import Refusal

BATCH = 1000


def give_up(group: GroupHandle) -> Operation[tuple[int, int]]:
    """Give up everything that has expired; returns how many messages were dropped and buried."""
    dropped = place = 0
    while place >= 0:
        args = (group.name, place)
        try:
            gone, place = yield Call("hw_group_expire", group.key, args, repeatable=True)
        except Refusal:
            raise group.unknown() from None
        dropped += gone
    return dropped, (yield from bury(group))


def bury(group: GroupHandle) -> Operation[int]:
    """Move what was found to have expired to the dead letters; returns how many messages.

    Each batch is noted and numbered in the group before it is written, and written under its
    number, so that whoever repeats it after a crash writes nothing twice.
    """
    buried, done, at = 0, "", 0
    while True:
        args = (group.name, done, at, BATCH)
        try:
            reply = yield Call("hw_group_bury", group.key, args, repeatable=True)
        except Refusal:
            raise group.unknown() from None
        if not reply:
            return buried
        number, flat, target = reply
        ranges = list(zip(*(iter(flat),) * 3, strict=True))
        runs = yield from fetch(group.stream, [(first, last) for first, last, _ in ranges])
        found = {message.offset: message for run in runs for message in run.messages()}
        # What was evicted or compacted meanwhile keeps its place, empty: places are counted.
        letters = [
            found.get(offset) or Message(offset, "", b"", 0)
            for first, last, _ in ranges
            for offset in range(first, last + 1)
        ]
        grave = StreamHandle(target.decode(), group.stream.registered)
        entries = [(letter.tag, letter.value) for letter in letters]
        offsets = yield from write_many(grave, entries, None, _producer(group), number)
        buried += len(letters)
        done, at = str(number), offsets.start


def _producer(group: GroupHandle) -> str:
    """Name who writes the letters of a group: short for any name, and no other group's."""
    names = f"{len(group.stream.name)} {group.stream.name} {group.name}"
    return f"dead:{hashlib.sha256(names.encode()).hexdigest()[:32]}"


def dead(group: GroupHandle, count: int) -> Operation[list[DeadLetter]]:
    """Look at the oldest ``count`` dead letters; they stay where they are."""
    check_count(count, most=MAX_BATCH_MESSAGES)
    try:
        reply: Any = yield Call(
            "hw_group_dead", group.key, (group.name, max(count, 1)), read_only=True
        )
    except Refusal:
        raise group.unknown() from None
    target, flat = reply
    letters: list[DeadLetter] = []
    if not target:
        return letters
    grave = StreamHandle(target.decode(), group.stream.registered)
    for at, first, last, attempts in zip(*(iter(flat),) * 4, strict=True):
        left = count - len(letters)
        if left <= 0:
            break
        end = at + min(last - first, left - 1)
        for run in (yield from fetch(grave, [(at, end)])):
            for m in run.cut(at, end).messages():
                origin = first + m.offset - at
                letters.append(DeadLetter(m.offset, m.tag, m.value, m.time_ms, origin, attempts))
    return letters


def redrive(group: GroupHandle, count: int) -> Operation[Redriven]:
    """Give up to ``count`` dead letters back to the group, at once and as if never tried."""
    left, gone, place = check_count(count), 0, 0
    while place >= 0:
        args = (group.name, left, place)
        try:
            back, lost, place = yield Call("hw_group_redrive", group.key, args)
        except Refusal:
            raise group.unknown() from None
        left, gone = left - back, gone + lost
    return Redriven(count - left, gone)
