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
        found: FoundLetter = yield Ask(self.letters.find(written.offset))
        letter = yield from self._recognise(written, found)
        if letter is None:
            letter = yield Ask(self.letters.bury(lost, None))
        yield Step("buried")
        moved: bool = yield Transact(self._move(batch, lost.message.offset, letter, found))
        return moved

    def _move(
        self, batch: ConsumerBatch, message: int, letter: WrittenLetter, found: FoundLetter
    ) -> Work[bool]:
        if not (yield from self._position.move(batch.at, batch.after)):
            return False
        if not self._notes or letter.noted is None:
            return True
        # Whoever discards letters holds the position that was just moved: if this one was among
        # them, that is known now.
        if not (yield from self._is_done(letter, found)):
            where = {"who": self._name, "place": self._stream}
            row = {**where, "created": letter.noted, "message": message}
            yield Execute(given_up.NOTE[self._dialect], row)
        return True

    def _recognise(self, written: WrittenLetter, found: FoundLetter) -> Work[WrittenLetter | None]:
        """Return a letter as the log has it, which may have deduplicated it.

        None for one that is not of this failure. The consumer was moved back since, and the letter
        was redriven or evicted long ago; or it is of a stream that had this name before.
        """
        letter = found.letter
        if letter is None or letter.noted not in (None, written.noted):
            return None
        return None if (yield Transact(self._is_done(letter, found))) else letter

    def _is_done(self, letter: WrittenLetter, found: FoundLetter) -> Work[bool]:
        """Return whether a letter was redriven or discarded."""
        place = place_among_letters(self.letters.name, found.created)
        request = Fetch(checkpoints.LOAD, {"who": self._name, "place": place})
        done: int = (yield request) or 0
        # A position beyond the end: the log has lost letters, and a redrive raises that.
        return letter.offset < done <= max(found.last, letter.offset) + 1
