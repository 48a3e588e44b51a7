"""What a consumer does, without I/O: Consumer and AsyncConsumer run the same definition.

One batch is one SQL transaction:

    read       messages from the position on, from the log
    begun      the transaction is open
    moved      the position was compared and set: a process that finds it elsewhere handles nothing
    handled    the handler has written its effects
    committed  position and effects are there, together
    reported   the log knows the position, so that retention may pass it

A crash before ``committed`` leaves no trace, and one after it nothing to repeat. When the outcome
of a commit is unknown, the position is looked up again before anything else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from headwater.errors import (
    GapError,
    InvalidInput,
    LostFuture,
    OutboxError,
    PoisonedBatch,
    PositionLost,
    StoreError,
    TransactionEnded,
    Undecodable,
)
from headwater.kernel import failures
from headwater.kernel.failures import LetterFilter, delay_s, store_may_recover
from headwater.kernel.instrument import Outcome, observe
from headwater.log.handles import Start, StreamHandle
from headwater.log.reading import read_from
from headwater.log.topics import TopicHandle, in_partition
from headwater.log.types import Message, Passage
from headwater.outbox import checkpoints, given_up
from headwater.outbox.consumer_letters import (
    ConsumerLetter,
    ConsumerLetters,
    FoundLetter,
    GivenUp,
    WrittenLetter,
    place_among_letters,
)
from headwater.outbox.plan import (
    Ask,
    ConsumerPlan,
    ConsumerStats,
    Execute,
    Fetch,
    Handle,
    InspectTransaction,
    Pause,
    Restore,
    Step,
    Transact,
    Work,
)
from headwater.outbox.position import ConsumerPosition
from headwater.outbox.status import ConsumerBatch, cut_batch, reset_of, reset_tag, resets_in
from headwater.sql.driver_errors import (
    Database,
    database_may_recover,
    was_rolled_back_for_others,
    without_secrets,
)
from headwater.store.letters import LetterPage

# ── Outages ───────────────────────────────────────────────────────────────────────────────────────
# Trouble that passes: errors of the database or the store that are waited out.
#
# They are retried for as long as they last, and never count as a handler's failure. An outage is
# logged once when it begins and once when it is over.


# So many transactions rolled back in a row are an outage after all.
_UNUSUAL = 5


def is_passing(error: BaseException) -> bool:
    """Return whether an error is of the database or the store, and may be gone by the next try."""
    if isinstance(error, StoreError):
        return store_may_recover(error)
    return database_may_recover(error)


class DatabaseOutage(failures.Outage):
    """An outage of a database or a store; what is logged of it shows no secret of the database.

    A single transaction that was rolled back for the sake of another one is not logged.
    """

    def __init__(
        self,
        who: str,
        log: logging.Logger,
        database: Database,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(who, log, clock)
        self._database = database

    def _is_worth_logging(self, error: BaseException, failures: int) -> bool:
        return failures >= _UNUSUAL or not was_rolled_back_for_others(error)

    def _reason(self, error: BaseException) -> str:
        return without_secrets(super()._reason(error), self._database)


# ── Consumer source ───────────────────────────────────────────────────────────────────────────────
# What a consumer reads, a stream or a partition of a topic, and calling its owner's functions.


log = logging.getLogger("headwater.outbox")

T = TypeVar("T")


class Failed(Exception):
    """A handler failed; the cause is its error. It rolls the transaction back.

    ``misfit`` is the offset of the message whose value does not fit its codec, if that was it.
    """

    misfit: int | None = None


class NotYet(Exception):
    """What was read cannot be handled before something else is; it rolls the transaction back."""


class ConsumerSource:
    """A stream, or a partition of a topic, as a consumer sees it.

    The owner's functions are found by ``name``: that of the stream, or of the whole topic.
    """

    def __init__(
        self,
        plan: ConsumerPlan,
        stream: StreamHandle,
        topic: TopicHandle | None = None,
        partition: int = 0,
    ) -> None:
        self.name = stream.name if topic is None else topic.name
        self.stream = stream
        self.who = f"consumer {plan.name!r} of {stream.name!r}"
        self._plan = plan
        self._topic = topic
        self._partition = partition

    def check_gap(self, gap: tuple[int, int] | None) -> None:
        """Raise GapError for what was evicted or lost, unless the consumer skips that."""
        if gap and self._plan.on_gap == "stop":
            raise GapError(self._plan.name, self.stream.name, *gap)

    def handle(self, messages: list[Message]) -> Work[None]:
        """Call the handler. Raises Failed from its error, or TransactionEnded."""
        if self._topic is None:
            given = self.stream.decoded(messages)
        else:
            given = self._topic.decoded(in_partition(self._partition, messages))
        try:
            yield from self._call(Handle(self.name, given))
        except Failed as failed:
            # A value that does not fit its codec: no retry changes that.
            misfits = (m for m in given if getattr(m, "decoded", None) is failed.__cause__)
            failed.misfit = next((m.offset for m in misfits), None)
            raise

    def restore(self, record: Message) -> Work[None]:
        """Replace the state, and apply again what is between its position and the record."""
        try:
            reset = reset_of(record)
            if not self._plan.resets:
                raise InvalidInput(f"{self.who} is to be reset, but has no on_reset; pass one")
        except InvalidInput as error:
            raise Failed from error
        yield from self._call(Restore(self.name, reset.state))
        yield Step("restored")
        at = applied = reset.position + 1
        while at < record.offset:
            count = min(self._plan.batch, record.offset - at)
            passage: Passage = yield Ask(read_from(self.stream, at, count, None, whole=False))
            if passage.next == at:
                raise PositionLost(self._plan.name, self.stream.name, at, passage.last)
            if passage.gap:
                first, last = passage.gap[0], min(passage.gap[1], record.offset - 1)
                self.check_gap((first, last))
                applied = last + 1
                log.warning(
                    "%s is reset without offsets %d to %d, which are gone",
                    *(self.who, first, last),
                )
            skipped = {message.offset for message in resets_in(passage.messages)}
            again = [
                message
                for message in passage.messages
                if message.offset < record.offset and message.offset not in skipped
            ]
            if again:
                yield from self.handle(again)
            at = passage.next
        if at > applied:
            # They are applied now, also those that were given up before; evicted ones are not.
            which = {"who": self._plan.name, "place": self.stream.name}
            created = int(self.stream.seen.created)
            between = {"created": created, "first": applied, "last": record.offset - 1}
            yield Execute(given_up.FORGET_BETWEEN, {**which, **between})

    def _call(self, request: Handle | Restore) -> Work[None]:
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
                "the handler caught an error of the database, which rolled the transaction back; "
                "do not catch it, or catch it around conn.begin_nested()"
            )


# ── Burying ───────────────────────────────────────────────────────────────────────────────────────
# Giving a message up: its dead letter in the log, then position and note in one SQL transaction.
#
# In that order: a crash in between writes the letter again, and the log deduplicates it. Until the
# position has moved, the letter does not count (see given_up.py).


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


# ── Consuming ─────────────────────────────────────────────────────────────────────────────────────


# A waiting consumer checks this often whether it was asked to stop.
WAIT_MS = 500
# New positions are reported to the log at most this often while there is work.
REPORT_S = 1.0
# A consumer that has nothing to do looks up its position this often: somebody may have moved it.
DOUBT_S = 2.0
# While it runs, each call of the store is retried for that long; then it is an outage.
PATIENCE_S = 1.0
LONGEST_RETRY_S = 10.0
GAPS_KEPT = 100


class Turn:
    """One consumer on one stream: what it does next, and what it has done.

    After a failure, ``retry_at`` is when to try again; a Turn that runs alone waits by itself.
    """

    def __init__(
        self,
        plan: ConsumerPlan,
        source: ConsumerSource,
        burial: Burial | None = None,
        position: ConsumerPosition | None = None,
    ) -> None:
        self.plan = plan
        self.source = source
        self.stream = source.stream
        self.stats = ConsumerStats()
        self.position = position or ConsumerPosition(plan, self.stream)
        self.retry_at: float | None = None
        if burial is None:
            letters = ConsumerLetters(plan.dead_letters(self.stream.name), self.stream)
            burial = Burial(plan, self.stream, letters, self.position)
        self._burial = burial
        self._who = source.who
        self._reset_tag = reset_tag(plan.name)
        self._size = plan.batch
        self._failures = 0
        self._suspect = 0  # somewhere before this offset is a message that cannot be handled
        self._began_ms = 0  # when what is handled now, or a batch that held it, was first handled
        self._retries = self._committing = self._alone = False

    def run(self) -> Work[None]:
        """Apply what comes, wait for more, and retry after an outage, until asked to stop."""
        self._retries = self._alone = True
        outage = DatabaseOutage(self._who, log, self.plan.database, self.plan.time.monotonic)
        while not (yield Pause(0)):
            try:
                handled = yield from self._advance(WAIT_MS)
                outage.over()
                yield from self.position.report(REPORT_S)
                if handled is None:
                    self.position.doubt(DOUBT_S)
            except Exception as error:
                if not is_passing(error):
                    yield from self.position.report()
                    raise
                yield Pause(outage.meet(error))
        yield from self.position.report()

    def run_once(self) -> Work[int]:
        """Apply one batch, if there is one; returns how many messages were handled."""
        self._retries, self._alone = False, True
        while (handled := (yield from self._advance(None))) == 0:
            pass
        yield from self.position.report()
        return handled or 0

    def run_beside(self) -> Work[int | None]:
        """Apply one batch, if there is one, and do not wait: others have their turn meanwhile.

        Returns what ``_advance`` returns.
        """
        self._retries, self._alone, self.retry_at = True, False, None
        return (yield from self._advance(None))

    def run_to(self, end: int) -> Work[None]:
        """Apply what there is up to an offset, with batches of one message no more than that.

        Raises LostFuture and PositionLost also when the position is behind the offset already.
        """
        self._retries, self._alone = False, True
        if (yield from self.position.look_up()) > end:
            yield from self._read(None)
            return
        while (yield from self.position.look_up()) <= end:
            if (yield from self._advance(None)) is None:
                break

    def seek(self, start: Start) -> Work[int]:
        """Set the position, whatever it was; returns the offset."""
        self._failures = self._suspect = 0
        self._size = self.plan.batch
        return (yield from self.position.seek(start))

    def each(self, act: Callable[[Turn], Work[T]], partition: int | None = None) -> Work[list[T]]:
        """Do something on the stream, which has no partitions."""
        assert partition is None
        return [(yield from act(self))]

    def lag(self) -> Work[int]:
        """Count the offsets between the position and the end of the stream."""
        return (yield from self.position.lag())

    def load(self) -> Work[tuple[str, int | None]]:
        """Return the name of the stream, and the position."""
        return self.stream.name, (yield from self.position.load())

    def remove(self) -> Work[bool]:
        """Remove the consumer; returns whether it existed."""
        return (yield from self.position.remove())

    def dead(
        self, count: int, matching: LetterFilter | None, max_bytes: int | None
    ) -> Work[list[ConsumerLetter]]:
        """Return the oldest dead letters that fit, no more once they have ``max_bytes``."""
        page: LetterPage[ConsumerLetter]
        page = yield Ask(self._burial.letters.listed(count, matching, max_bytes))
        return page.letters

    def _advance(self, block_ms: float | None) -> Work[int | None]:
        """Apply the next batch; returns how many messages were handled.

        None when there was nothing to do; 0 when there may be more, although nothing was handled.
        """
        try:
            batch = yield from self._read(block_ms)
            return (yield from self._take(batch)) if batch else None
        except (GapError, PositionLost, PoisonedBatch):
            raise  # and the position is where it was
        except BaseException:
            # Whether a commit succeeded may be unknown.
            self.position.next = None
            raise

    def _read(self, block_ms: float | None) -> Work[ConsumerBatch | None]:
        while True:
            at = yield from self.position.look_up()
            self.position.expect()
            try:
                passage: Passage = yield Ask(
                    read_from(self.stream, at, self._size, block_ms, looks=True, whole=False)
                )
            except LostFuture:
                # Somebody may have moved the consumer back already.
                if (yield from self.position.has_moved()):
                    continue
                raise
            beyond = passage.last < at - 1
            if not (passage.gap or beyond):
                break
            # Another process of this name may be further already, and retention behind it.
            seen = self.stream.seen
            if (yield from self.position.has_moved()):
                continue
            if beyond:
                raise PositionLost(self.plan.name, self.stream.name, at, passage.last)
            self.source.check_gap(passage.gap)
            self.stream.seen = seen
            break
        if passage.next == at:
            yield from self.position.keep_history()
            return None
        yield Step("read")
        return cut_batch(at, passage, self._reset_tag)

    def _take(self, batch: ConsumerBatch) -> Work[int | None]:
        observation = observe("consumer.batch", self.plan.name, batch.messages)
        self._committing = False
        if not self._failures and batch.at >= self._suspect:
            self._began_ms = int(self.plan.time.time() * 1000)
        try:
            moved = yield Transact(self._apply(batch), alone=True)
        except Failed as failed:
            error = failed.__cause__ or failed
            if observation is not None:
                observation.end(self._outcome(error, batch, failed.misfit), error)
            return (yield from self._fail(batch, error, failed.misfit))
        except NotYet:
            if observation is not None:
                observation.end("refused")
            raise
        except BaseException as error:
            if observation is not None:
                observation.end(self._outcome(error), error)
            raise
        if not moved:
            if observation is not None:
                observation.end("refused")
            return self._step_aside()
        if observation is not None:
            observation.messages, observation.bytes = len(batch.records), batch.bytes
            observation.end()
        yield Step("committed")
        self.stats.batches += 1
        self.stats.handled += len(batch.messages)
        self.stats.resets += batch.reset is not None
        self._pass(batch)
        return len(batch.records)

    def _apply(self, batch: ConsumerBatch) -> Work[bool]:
        """Move the position and write the effects; False when another process was faster."""
        yield Step("begun")
        if not (yield from self.position.move(batch.at, batch.after)):
            return False
        yield Step("moved")
        if batch.reset:
            yield from self.source.restore(batch.reset)
        elif batch.messages:
            yield from self.source.handle(batch.messages)
        yield Step("handled")
        self._committing = True
        return True

    def _outcome(
        self,
        error: BaseException,
        failed: ConsumerBatch | None = None,
        misfit: int | None = None,
    ) -> Outcome:
        """Return what to report of an error; ``failed`` is the batch that a handler failed on."""
        if is_passing(error):
            return "unknown" if self._committing else "retried" if self._retries else "failed"
        return "failed" if failed is None or self._gives_up(failed, misfit) else "retried"

    def _pass(self, batch: ConsumerBatch) -> None:
        """Note that the position has moved over a batch."""
        self.position.passed(batch.after)
        self._failures = 0
        left = self._suspect - batch.after
        self._size = min(2 * self._size, left) if left > 0 else self.plan.batch
        if batch.gap:
            first, last = batch.gap
            log.warning("%s missed offsets %d to %d, which are gone", self._who, first, last)
            self.stats.missed += last - first + 1
            self.stats.gaps = [*self.stats.gaps, (self.stream.name, first, last)][-GAPS_KEPT:]

    def _step_aside(self) -> int:
        """Note that another process of this name was faster."""
        self.position.next, self._failures, self._size = None, 0, self.plan.batch
        self.stats.overtaken += 1
        return 0

    # ── When the handler fails ───────────────────────────────────────────────────────────────

    def _fail(
        self, batch: ConsumerBatch, error: BaseException, misfit: int | None
    ) -> Work[int | None]:
        """Retry, give up, or find the message that fails by taking fewer at a time.

        Where one whose value does not fit its codec, a ``misfit``, is to blame, nothing is retried.
        """
        if is_passing(error):
            raise error
        last_try, gives_up = self._is_last_try(batch, misfit), self._gives_up(batch, misfit)
        self._failures += 1
        tries = self._failures
        first, last = batch.records[0].offset, batch.records[-1].offset
        if not last_try:
            log.warning(
                "the handler of %s failed on offsets %d to %d, attempt %d of %d: %r",
                *(self._who, first, last, self._failures, self.plan.attempts, error),
            )
            wait_s = delay_s(self._failures, self.plan.backoff_s, LONGEST_RETRY_S)
            if not self._alone:
                self.retry_at = self.plan.time.monotonic() + wait_s
                return None
            return None if (yield Pause(wait_s)) else 0
        self._failures = 0
        if self.plan.on_error == "stop":
            if misfit is not None:
                first = last = misfit
            raise PoisonedBatch(
                *(self.plan.name, self.stream.name, first, last, tries, repr(error))
            ) from error
        if not gives_up:
            self._suspect = max(self._suspect, batch.after)
            before = sum(record.offset < (misfit or 0) for record in batch.records)
            self._size = len(batch.records) // 2 if misfit is None else max(before, 1)
            return 0
        given_up = GivenUp(batch.records[0], tries, self._began_ms, error)
        return (yield from self._bury(batch, given_up))

    def _is_last_try(self, batch: ConsumerBatch, misfit: int | None) -> bool:
        """Return whether a batch that fails now is not retried as it is."""
        if misfit is not None:
            return True
        searching = batch.at < self._suspect and len(batch.records) > 1
        return self._failures + 1 >= (1 if searching else self.plan.attempts)

    def _gives_up(self, batch: ConsumerBatch, misfit: int | None) -> bool:
        """Return whether a batch that fails now is not retried at all, whole or in parts."""
        ends = self.plan.on_error == "stop" or len(batch.records) == 1
        return ends and self._is_last_try(batch, misfit)

    def _bury(self, batch: ConsumerBatch, given_up: GivenUp) -> Work[int]:
        """Write a message to the dead letters, and move the position over it."""
        message, error = given_up.message, given_up.error
        if not (yield from self._burial.bury(batch, given_up)):
            return self._step_aside()
        log.error(
            "%s gave up offset %d, which is now a dead letter in stream %r: %s",
            # The words of a codec may quote the value.
            *(self._who, message.offset, self._burial.letters.name),
            repr(error) if not isinstance(error, Undecodable) else f"it does not fit {error.codec}",
        )
        self.stats.dead += 1
        self._pass(batch)
        return 0
