"""Dead letters of a consumer handled again by itself, which alone has the handler, or dropped.

The position among the letters of a stream is in SQL, as that among its messages, so that the
effect of a letter and the step past it are one transaction: each letter has its effect once, also
when a redrive is killed. A letter that fails again is a new letter, behind those that there were,
and waits for the next time.

A letter counts only while SQL notes that its message was given up (see given_up.py), and the same
transaction deletes that note. So a letter whose message was applied after all is passed over: its
consumer was killed before the position moved, or it failed in one redrive while another one
applied it. A letter whose message is not behind the position yet is left, with those after it,
until the consumer has retried the message; of a stream that was deleted, nobody retries it. Letters
that note nothing count.
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
from headwater.outbox.consumer_letters import (
    ConsumerRedriven,
    RedrivenLetters,
    noted_of,
    original,
    place_among_letters,
)
from headwater.outbox.consuming import Burial, ConsumerSource, Failed, NotYet, Turn
from headwater.outbox.plan import Ask, ConsumerPlan, Execute, Fetch, Step, Transact, Work
from headwater.outbox.position import ConsumerPosition

# ── Discarding ────────────────────────────────────────────────────────────────────────────────────
# Dead letters of a consumer dropped for good, with what SQL notes of them (see given_up.py).
#
# SQL comes first: one transaction moves the position among the letters over them and deletes their
# notes. Then the log evicts them. Whoever is killed in between leaves letters behind that
# position, which nobody handles; the next discard, or redrive, evicts them.
#
# A message may have another letter behind those that are discarded: it was given up again after a
# seek, or a redrive of it failed. That letter stays, and so does the note.


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


def not_one_stream(streams: str) -> InvalidInput:
    """Return the error for an offset among the letters of more than one stream."""
    return InvalidInput(
        f"up_to is an offset of the dead letters of one stream; name it with stream: {streams}"
    )


# ── Redriving ─────────────────────────────────────────────────────────────────────────────────────


class _LettersSource(ConsumerSource):
    """The letters of a stream, which its handler gets as the messages that they were.

    ``void`` is how many letters were skipped, because their message had been applied already;
    ``created`` is which stream of its name the consumer reads now.
    """

    def __init__(
        self, plan: ConsumerPlan, letters: StreamHandle, source: ConsumerSource, created: int
    ) -> None:
        super().__init__(plan, letters)
        self.void = 0
        self._of = source
        self._created = created

    def handle(self, messages: list[Message]) -> Work[None]:
        """Call the handler of the stream. Raises Failed from its error, or TransactionEnded."""
        (letter,) = messages
        if (yield from self._claim(letter)):
            yield from self._of.handle([original(letter)])
        else:
            self.void += 1

    def restore(self, record: Message) -> Work[None]:
        """Refuse an old state: it would replace what came after it."""
        if (yield from self._claim(record)):
            offset = original(record).offset
            raise Failed from InvalidInput(f"offset {offset} is a reset; write a new one instead")

    def _claim(self, letter: Message) -> Work[bool]:
        """Return whether a letter counts; from now on no other letter of its message does."""
        noted = noted_of(letter)
        if noted is None:
            return True
        message = original(letter).offset
        key: dict[str, Any] = {"who": self._plan.name, "place": self._of.stream.name}
        # In this order: a message that is behind the position was noted before, or never is.
        position: int | None = yield Fetch(checkpoints.LOAD, key)
        if (yield Execute(given_up.CLAIM, {**key, "created": noted, "message": message})):
            return True
        if noted == self._created and (position is None or position <= message):
            raise NotYet  # the consumer has written a letter, and may still apply its message
        return False


def redrive(turn: Turn) -> Work[ConsumerRedriven]:
    """Handle the letters that there are now, in order, one at a time; evict those that are done."""
    name = turn.plan.dead_letters(turn.stream.name)
    letters = StreamHandle(name, turn.stream.registered)
    plan = replace(turn.plan, batch=1, start="first", on_error="skip", on_gap="skip")
    there: Extent = yield Ask(extent(name))
    place = ConsumerPosition(plan, letters, place_among_letters(name, there.created))
    buried = RedrivenLetters(name, letters)
    # After the letters: none of them is of a stream that is newer than this one.
    read: Extent = yield Ask(extent(turn.stream.name))
    source = _LettersSource(plan, letters, turn.source, read.created)
    burial = Burial(plan, letters, buried, place, notes=False)
    again = Turn(plan, source, burial, place)
    if end := there.last:
        yield from _pass_what_is_buried(place, buried)
        try:
            yield from again.run_to(end)
        except NotYet:
            place.next = None
        yield from evict_done(turn, letters, place, end)
    return ConsumerRedriven(again.stats.handled - source.void, again.stats.dead)


def _pass_what_is_buried(position: ConsumerPosition, buried: RedrivenLetters) -> Work[None]:
    """Step past a letter that was written again by somebody who was killed before that step.

    To handle it once more might succeed, and then it would have its effect and a letter, too.
    """
    at = yield from position.look_up()
    if (yield Ask(buried.newest(position.reader))) == at:
        if (yield Transact(position.move(at, at + 1))):
            position.passed(at + 1)
        else:
            position.next = None  # somebody else was faster
