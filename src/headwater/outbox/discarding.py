"""Dead letters of a consumer dropped for good, with what SQL notes of them (see given_up.py).

SQL comes first: one transaction moves the position among the letters over them and deletes their
notes. Then the log evicts them. Whoever is killed in between leaves letters behind that position,
which nobody handles; the next discard, or redrive, evicts them.

A message may have another letter behind those that are discarded: it was given up again after a
seek, or a redrive of it failed. That letter stays, and so does the note.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from headwater.errors import InvalidInput, PositionLost
from headwater.log.handles import StreamHandle
from headwater.log.reading import Extent, extent, read_from
from headwater.log.retention import evict, set_reader
from headwater.log.types import Message, Passage
from headwater.outbox import checkpoints, given_up
from headwater.outbox.consumer_letters import noted_of, original, place_among_letters
from headwater.outbox.consuming import Turn
from headwater.outbox.position import ConsumerPosition
from headwater.outbox.requests import Ask, Execute, Step, Transact, Work

# So many letters are discarded in one transaction.
_BATCH = 1000


def discard(turn: Turn, up_to: int | None = None) -> Work[int]:
    """Drop the letters that there are now, or those up to an offset; returns how many."""
    name = turn.plan.dead_letters(turn.stream.name)
    letters = StreamHandle(name, turn.stream.registered)
    there: Extent = yield Ask(extent(name))
    end = there.last if up_to is None else min(up_to, there.last)
    if not end:
        return 0
    plan = replace(turn.plan, start="first")
    place = ConsumerPosition(plan, letters, place_among_letters(name, there.created))
    discarded = 0
    while (at := (yield from place.look_up())) <= end:
        place.expect()
        passage: Passage = yield Ask(read_from(letters, at, min(_BATCH, end - at + 1), None))
        if passage.next == at:
            break  # they are gone, with their stream
        after = min(passage.next, end + 1)
        some = [letter for letter in passage.messages if letter.offset <= end]
        if (yield Transact(_drop(turn, place, (at, after), some, end), alone=True)):
            place.passed(after)
            discarded += len(some)
        else:
            place.next = None  # somebody else discards or redrives them, too
    if at > there.last + 1 and at > (yield Ask(extent(name))).last + 1:
        raise PositionLost(turn.plan.name, name, at, there.last)
    yield Step("discarded")
    yield from evict_done(turn, letters, place, end)
    return discarded


def _drop(
    turn: Turn, place: ConsumerPosition, step: tuple[int, int], some: list[Message], end: int
) -> Work[bool]:
    key: dict[str, Any] = {"who": turn.plan.name, "place": turn.stream.name}
    # Until the end of this transaction nobody gives a message up: a letter that comes later finds
    # its note deleted, and notes it again.
    yield Execute(checkpoints.HOLD, key)
    if not (yield from place.move(*step)):
        return False
    known = [(noted_of(letter), original(letter).offset) for letter in some]
    notes = {(noted, message) for noted, message in known if noted is not None}
    notes -= yield from _of_later_letters(turn, end, notes)
    for created, message in sorted(notes):
        yield Execute(given_up.CLAIM, {**key, "created": created, "message": message})
    yield Step("dropped")
    return True


def _of_later_letters(
    turn: Turn, end: int, notes: Collection[tuple[int, int]]
) -> Work[set[tuple[int, int]]]:
    """Return those notes of which there are letters behind ``end``."""
    name = turn.plan.dead_letters(turn.stream.name)
    handle = StreamHandle(name, turn.stream.registered)
    found: set[tuple[int, int]] = set()
    at = end + 1
    while True:
        passage: Passage = yield Ask(read_from(handle, at, _BATCH, None))
        for letter in passage.messages:
            note = (noted_of(letter) or 0, original(letter).offset)
            if note in notes:
                found.add(note)
        if passage.next == at:
            return found
        at = passage.next


def evict_done(turn: Turn, letters: StreamHandle, place: ConsumerPosition, end: int) -> Work[None]:
    """Evict the letters up to an offset that are behind the position among them."""
    done = (yield from place.look_up()) - 1
    # Letters that come later wait for nobody, and nothing waits for them.
    yield Ask(set_reader(letters.key, turn.position.reader, None))
    yield Ask(evict(letters, min(done, end)))


def refuse_up_to(up_to: int | None, streams: str) -> None:
    """Raise InvalidInput for an offset among the letters of more than one stream."""
    if up_to is not None:
        raise InvalidInput(
            f"up_to is an offset of the dead letters of one stream; name it with stream: {streams}"
        )
