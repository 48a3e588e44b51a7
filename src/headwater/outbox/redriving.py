"""Dead letters of a consumer handled again, by the consumer itself: it alone has the handler.

The position among the letters of a stream is in SQL, as that among its messages, so that the
effect of a letter and the step past it are one transaction: each letter has its effect once, also
when a redrive is killed. A letter that fails again is a new letter, behind those that there were,
and waits for the next time.

A letter counts only while SQL notes that its message was given up (see given_up.py), and the same
transaction deletes that note. So a letter whose message was applied after all is passed over: its
consumer was killed before the position moved, or it failed in one redrive while another one
applied it. A letter whose message is not behind the position yet is left, with those after it,
until the consumer has retried the message; of a stream that was deleted, nobody retries it. Letters
of older releases, which noted nothing, count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headwater.errors import InvalidInput
from headwater.log.handles import StreamHandle
from headwater.log.reading import Extent, extent
from headwater.log.types import Message
from headwater.outbox import checkpoints, given_up
from headwater.outbox.burying import Burial
from headwater.outbox.consumer_letters import (
    ConsumerRedriven,
    RedrivenLetters,
    noted_of,
    original,
    place_among_letters,
)
from headwater.outbox.consumer_source import ConsumerSource, Failed, NotYet
from headwater.outbox.consuming import Turn
from headwater.outbox.discarding import evict_done
from headwater.outbox.plan import ConsumerPlan
from headwater.outbox.position import ConsumerPosition
from headwater.outbox.requests import Ask, Execute, Fetch, Transact, Work


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
