"""What a consumer reads, a stream or a partition of a topic, and calling its owner's functions."""

from __future__ import annotations

import logging

from headwater.errors import GapError, InvalidInput, OutboxError, PositionLost, TransactionEnded
from headwater.log.handles import StreamHandle
from headwater.log.reading import read_from
from headwater.log.topics import TopicHandle, in_partition
from headwater.log.types import Message, Passage
from headwater.outbox import given_up
from headwater.outbox.outages import is_passing
from headwater.outbox.plan import ConsumerPlan
from headwater.outbox.requests import Ask, Execute, Handle, InspectTransaction, Restore, Step, Work
from headwater.outbox.reset import reset_of, resets_in

log = logging.getLogger("headwater.outbox")


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
