"""Giving a message up: its dead letter in the log, then position and note in one SQL transaction.

In that order: a crash in between writes the letter again, and the log deduplicates it. Until the
position has moved, the letter does not count (see given_up.py).
"""

from __future__ import annotations

from headwater.log.handles import StreamHandle
from headwater.outbox import checkpoints, given_up
from headwater.outbox.consumer_batch import ConsumerBatch
from headwater.outbox.consumer_letters import (
    ConsumerLetters,
    FoundLetter,
    GivenUp,
    WrittenLetter,
    place_among_letters,
)
from headwater.outbox.plan import ConsumerPlan
from headwater.outbox.position import ConsumerPosition
from headwater.outbox.requests import Ask, Execute, Fetch, Step, Transact, Work


class Burial:
    """Gives messages of ``stream`` up, over which ``position`` is then moved.

    With ``notes=False``, for a redrive, they are letters already: what SQL notes of them stays.
    """

    def __init__(
        self,
        plan: ConsumerPlan,
        stream: StreamHandle,
        letters: ConsumerLetters,
        position: ConsumerPosition,
        *,
        notes: bool = True,
    ) -> None:
        self.letters = letters
        self._name = plan.name
        self._dialect = plan.database.dialect.name
        self._stream = stream.name
        self._position = position
        self._notes = notes

    def bury(self, batch: ConsumerBatch, lost: GivenUp) -> Work[bool]:
        """Give up the one message of a batch; False when another process was faster."""
        yield Step("given up")
        written: WrittenLetter = yield Ask(self.letters.bury(lost, self._position.reader))
        letter = yield from self._recognise(written)
        if letter is None:
            letter = yield Ask(self.letters.bury(lost, None))
        yield Step("buried")
        moved: bool = yield Transact(self._move(batch, lost.message.offset, letter.noted))
        return moved

    def _move(self, batch: ConsumerBatch, message: int, noted: int | None) -> Work[bool]:
        if not (yield from self._position.move(batch.at, batch.after)):
            return False
        if noted is not None and self._notes:
            row = {"who": self._name, "place": self._stream, "created": noted, "message": message}
            yield Execute(given_up.NOTE[self._dialect], row)
        return True

    def _recognise(self, written: WrittenLetter) -> Work[WrittenLetter | None]:
        """Return a letter as the log has it, which may have deduplicated it.

        None for one that is not of this failure. The consumer was moved back since, and the letter
        was redriven or evicted long ago; or it is of a stream that had this name before.
        """
        found: FoundLetter = yield Ask(self.letters.find(written.offset))
        letter = found.letter
        if letter is None or letter.noted not in (None, written.noted):
            return None
        place = place_among_letters(self.letters.name, found.created)
        redriven: int = (yield Transact(_fetch_position(self._name, place))) or 0
        if redriven > found.last + 1:
            redriven = 0  # the log has lost letters: a redrive raises that
        return letter if letter.offset >= redriven else None


def _fetch_position(consumer: str, place: str) -> Work[int | None]:
    found: int | None = yield Fetch(checkpoints.LOAD, {"who": consumer, "place": place})
    return found
