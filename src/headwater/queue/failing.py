"""Failed attempts at messages of a queue: retry later, or give up; and why letters failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from headwater.kernel.failures import USED_UP, Failure, read_failure, spelled
from headwater.kernel.inputs import check_ms
from headwater.queue.acks import Deliveries, messages_settled, receipts_of
from headwater.queue.handles import QueueHandle
from headwater.queue.replies import SettleReply
from headwater.queue.types import QueueItem
from headwater.store.call import Argument, Call, Operation

REPORTS_PER_CALL = 200
REPORT_WORDS = 4
CAUSES_PER_CALL = 1000
# In the place of a delay: the message is not redelivered.
GIVE_UP = -1


def fail(queue: QueueHandle, failures: Iterable[Failure]) -> Operation[int]:
    """Report failed attempts; returns how many of the messages were still held.

    Each is redelivered after its delay, as by a nack. A message without a delay becomes a dead
    letter.
    """
    words = [word for failure in failures for word in _report(failure)]
    total = start = 0
    while start < len(words):
        # A repeat finds nothing left to settle. Only its count is lost with the first answer.
        args = tuple(words[start : start + REPORT_WORDS * REPORTS_PER_CALL])
        call = Call("hw_queue_fail", queue.key, args, repeatable=True, messages=messages_settled)
        reply = SettleReply(*(yield call))
        total, start = total + reply.messages, start + REPORT_WORDS * reply.bundles
    return total


def _report(failure: Failure) -> tuple[Argument, ...]:
    name, _, number = receipts_of([failure.item])[0].partition(".")
    delay_ms = failure.delay_ms
    ms = GIVE_UP if delay_ms is None else check_ms(delay_ms, "delay_ms")
    return name, number, ms, spelled(failure.error)


def bury(
    queue: QueueHandle, deliveries: Iterable[Deliveries], error: BaseException | str | None
) -> Operation[int]:
    """Make dead letters of messages, whatever their attempts; returns how many were still held."""
    return (
        yield from fail(queue, [Failure(receipt, error) for receipt in receipts_of(deliveries)])
    )


def with_causes(queue: QueueHandle, letters: Sequence[QueueItem]) -> Operation[list[QueueItem]]:
    """Return dead letters with their errors, as far as these are known."""
    known: dict[str, dict[str, Any]] = {}
    for start in range(0, len(letters), CAUSES_PER_CALL):
        args = tuple(letter.id for letter in letters[start : start + CAUSES_PER_CALL])
        found = yield Call("hw_queue_causes", queue.key, args, read_only=True)
        for number, text in zip(args, found, strict=True):
            known[number] = (read_failure(text) if text else USED_UP)._asdict()
    return [replace(letter, **known[letter.id]) for letter in letters]
