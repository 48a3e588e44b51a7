"""What a consumer does, without doing any of it: asked of the sync and the async consumer alike.

One batch is one SQL transaction:

    read       messages from the position on, from the log
    begun      the transaction is open
    moved      the position was compared and set: whoever finds it elsewhere handles nothing
    handled    the handler has written its effects
    committed  position and effects are there, together
    told       the log knows the position, so that retention may pass it

A crash before ``committed`` leaves no trace, and one after it nothing to repeat. Whenever the
outcome of a commit is not known, the position is looked up again before anything else.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from headwater.errors import (
    GapError,
    InvalidInput,
    OutboxError,
    PoisonedBatch,
    PositionLost,
    StaleSequence,
    TransactionEnded,
)
from headwater.log.handles import Start, StreamHandle
from headwater.log.reading import read_from
from headwater.log.types import Message, Passage
from headwater.log.writing import write_many
from headwater.outages import delay_s
from headwater.outbox.outages import DatabaseOutage, is_passing
from headwater.outbox.plan import ConsumerPlan, ConsumerStats
from headwater.outbox.position import ConsumerPosition
from headwater.outbox.reset import reset_of, reset_tag, resets_in
from headwater.outbox.work import (
    Ask,
    Handle,
    InspectTransaction,
    Pause,
    Restore,
    Step,
    Transact,
    Work,
)

log = logging.getLogger("headwater.outbox")

# A waiting consumer looks up this often whether it was asked to stop.
WAIT_MS = 500
# The log is told of new positions at most this often while there is work.
TELL_S = 1.0
# A consumer that has nothing to do looks up its position so often: somebody may have moved it.
DOUBT_S = 2.0
# While it runs, each call of the log waits so long for a store that is away.
PATIENCE_S = 1.0
LONGEST_RETRY_S = 10.0
GAPS_KEPT = 100


class Failed(Exception):
    """A handler failed; the cause is its error. The transaction is rolled back with it."""


class ConsumerBatch(NamedTuple):
    """What one transaction applies: the messages between two positions, or one reset record."""

    at: int
    after: int
    messages: list[Message]
    reset: Message | None
    gap: tuple[int, int] | None


class Turn:
    """One consumer on one stream: what it does next, and how it gets on."""

    def __init__(self, plan: ConsumerPlan, stream: StreamHandle, grave: StreamHandle) -> None:
        self.stream = stream
        self.stats = ConsumerStats()
        self.position = ConsumerPosition(plan, stream)
        self._plan = plan
        self._grave = grave
        self._who = f"consumer {plan.name!r} of {stream.name!r}"
        self._reset_tag = reset_tag(plan.name)
        self._size = plan.batch
        self._failures = 0
        self._suspect = 0  # somewhere before this offset lies a message that cannot be handled

    def run(self) -> Work[None]:
        """Apply what comes, wait for more, and ride out trouble, until asked to stop."""
        outage = DatabaseOutage(self._who, log, self._plan.database, self._plan.time.monotonic)
        while not (yield Pause(0)):
            try:
                handled = yield from self._advance(WAIT_MS)
                outage.over()
                yield from self.position.tell(TELL_S)
                if handled is None:
                    self.position.doubt(DOUBT_S)
            except Exception as error:
                if not is_passing(error):
                    yield from self.position.tell()
                    raise
                yield Pause(outage.meet(error))
        yield from self.position.tell()

    def run_once(self) -> Work[int]:
        """Apply one batch, if there is one; returns how many messages were handled."""
        while (handled := (yield from self._advance(None))) == 0:
            pass
        yield from self.position.tell()
        return handled or 0

    def seek(self, start: Start) -> Work[int]:
        """Set the position, whatever it was; gives the offset."""
        self._failures = self._suspect = 0
        self._size = self._plan.batch
        return (yield from self.position.seek(start))

    def _advance(self, block_ms: float | None) -> Work[int | None]:
        """Take the next batch in hand; returns how many messages were handled.

        None when there was nothing to do; 0 when there may be more, although nothing was handled.
        """
        try:
            batch = yield from self._read(block_ms)
            return (yield from self._take(batch)) if batch else None
        except (GapError, PositionLost, PoisonedBatch):
            raise  # and the position is where it was
        except BaseException:
            # Whether a commit got through may be unknown.
            self.position.next = None
            raise

    def _read(self, block_ms: float | None) -> Work[ConsumerBatch | None]:
        at = yield from self.position.look_up()
        while True:
            passage: Passage = yield Ask(read_from(self.stream, at, self._size, block_ms))
            beyond = passage.last < at - 1
            if not (passage.gap or beyond):
                break
            # Another process of this name may be further already, and retention with it.
            self.position.next = None
            before, at = at, (yield from self.position.look_up())
            if at != before:
                continue
            if beyond:
                raise PositionLost(self._plan.name, self.stream.name, at, passage.last)
            self._check_gap(passage.gap)
            break
        if passage.next == at:
            return None
        yield Step("read")
        return self._cut(at, passage)

    def _check_gap(self, gap: tuple[int, int] | None) -> None:
        if gap and self._plan.on_gap == "stop":
            raise GapError(self._plan.name, self.stream.name, *gap)

    def _cut(self, at: int, passage: Passage) -> ConsumerBatch:
        """Give what comes before the first reset record for this consumer, or that record."""
        records = resets_in(passage.messages)
        if not records:
            return ConsumerBatch(at, passage.next, passage.messages, None, passage.gap)
        mine = next((record for record in records if record.tag == self._reset_tag), None)
        end = mine.offset if mine else passage.next
        others = {record.offset for record in records}
        messages = [m for m in passage.messages if m.offset < end and m.offset not in others]
        if mine and not (messages or passage.gap):
            return ConsumerBatch(at, end + 1, [], mine, None)
        return ConsumerBatch(at, end, messages, None, passage.gap)

    def _take(self, batch: ConsumerBatch) -> Work[int | None]:
        try:
            moved = yield Transact(self._apply(batch), alone=True)
        except Failed as failed:
            return (yield from self._fail(batch, failed.__cause__ or failed))
        if not moved:
            return self._step_aside()
        yield Step("committed")
        self.stats.batches += 1
        self.stats.handled += len(batch.messages)
        self.stats.resets += batch.reset is not None
        self._pass(batch)
        return 1 if batch.reset else len(batch.messages)

    def _apply(self, batch: ConsumerBatch) -> Work[bool]:
        """Move the position and write the effects; False when another process was faster."""
        yield Step("begun")
        if not (yield from self.position.move(batch.at, batch.after)):
            return False
        yield Step("moved")
        if batch.reset:
            yield from self._restore(batch.reset)
        elif batch.messages:
            yield from self._handle(Handle(self.stream.name, batch.messages))
        yield Step("handled")
        return True

    def _handle(self, request: Handle | Restore) -> Work[None]:
        """Call the user's code; its errors are its own, unless it ended the transaction."""
        try:
            yield request
        except Exception as error:
            if (yield InspectTransaction()) == "ended" and not is_passing(error):
                raise TransactionEnded(self._plan.name, self.stream.name) from error
            raise Failed from error
        state = yield InspectTransaction()
        if state == "ended":
            raise TransactionEnded(self._plan.name, self.stream.name)
        if state == "broken":
            raise Failed from OutboxError(
                "the handler caught an error of the database, which undid the transaction; let it "
                "pass, or catch it around conn.begin_nested()"
            )

    def _restore(self, record: Message) -> Work[None]:
        """Set the state, and apply again what lies between its position and the record."""
        try:
            reset = reset_of(record)
            if not self._plan.resets:
                raise InvalidInput(f"{self._who} is to be reset, but has no on_reset; give it one")
        except InvalidInput as error:
            raise Failed from error
        yield from self._handle(Restore(self.stream.name, reset.state))
        yield Step("restored")
        at = reset.position + 1
        while at < record.offset:
            count = min(self._plan.batch, record.offset - at)
            passage: Passage = yield Ask(read_from(self.stream, at, count, None))
            if passage.next == at:
                raise PositionLost(self._plan.name, self.stream.name, at, passage.last)
            if passage.gap:
                first, last = passage.gap[0], min(passage.gap[1], record.offset - 1)
                self._check_gap((first, last))
                log.warning("%s is reset without offsets %d to %d", self._who, first, last)
            skipped = {message.offset for message in resets_in(passage.messages)}
            again = [
                message
                for message in passage.messages
                if message.offset < record.offset and message.offset not in skipped
            ]
            if again:
                yield from self._handle(Handle(self.stream.name, again))
            at = passage.next

    def _pass(self, batch: ConsumerBatch) -> None:
        """Take note that the position has moved over a batch."""
        self.position.next, self._failures = batch.after, 0
        left = self._suspect - batch.after
        self._size = min(2 * self._size, left) if left > 0 else self._plan.batch
        if batch.gap:
            first, last = batch.gap
            log.warning("%s lost offsets %d to %d, which were evicted", self._who, first, last)
            self.stats.missed += last - first + 1
            self.stats.gaps = [*self.stats.gaps, (self.stream.name, first, last)][-GAPS_KEPT:]

    def _step_aside(self) -> int:
        """Take note that another process of this name was faster."""
        self.position.next, self._failures, self._size = None, 0, self._plan.batch
        self.stats.overtaken += 1
        return 0

    # ── When the handler fails ───────────────────────────────────────────────────────────────

    def _fail(self, batch: ConsumerBatch, error: BaseException) -> Work[int | None]:
        """Try again, give up, or come closer to the guilty message by taking fewer at a time."""
        if is_passing(error):
            raise error
        self._failures += 1
        messages = [batch.reset] if batch.reset else batch.messages
        first, last = messages[0].offset, messages[-1].offset
        alone = len(messages) == 1
        searching = batch.at < self._suspect
        if self._failures < (1 if searching and not alone else self._plan.attempts):
            log.warning(
                "the handler of %s failed on offsets %d to %d, try %d of %d: %r",
                *(self._who, first, last, self._failures, self._plan.attempts, error),
            )
            wait_s = delay_s(self._failures, self._plan.backoff_ms / 1000, LONGEST_RETRY_S)
            return None if (yield Pause(wait_s)) else 0
        self._failures = 0
        if self._plan.on_error == "stop":
            raise PoisonedBatch(
                *(self._plan.name, self.stream.name, first, last, self._plan.attempts, repr(error))
            ) from error
        if not alone:
            self._suspect = max(self._suspect, batch.after)
            self._size = len(messages) // 2
            return 0
        return (yield from self._bury(batch, messages[0], error))

    def _bury(self, batch: ConsumerBatch, message: Message, error: BaseException) -> Work[int]:
        """Write a message to the dead letters, then pass it.

        In that order, under its own number: a crash in between writes the letter again, and the
        log recognises it.
        """
        yield Step("given up")
        letter, producer = [(message.tag, message.value)], self.position.reader
        try:
            yield Ask(write_many(self._grave, letter, None, producer, message.offset))
        except StaleSequence:
            # The consumer was sent back to before what it buried long ago: nothing to recognise.
            yield Ask(write_many(self._grave, letter, None, None, None))
        yield Step("buried")
        if not (yield Transact(self.position.move(batch.at, batch.after))):
            return self._step_aside()
        log.error(
            "%s gave up offset %d, which is now in stream %r: %r",
            *(self._who, message.offset, self._grave.name, error),
        )
        self.stats.dead += 1
        self._pass(batch)
        return 0
