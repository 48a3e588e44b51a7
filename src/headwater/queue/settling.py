"""What a consumer does with its deliveries: ack, nack, release, extend, fail; and promotion."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from msgspec.structs import replace

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Param, Spelling
from headwater.kernel.failures import USED_UP, Failure, read_failure, spelled
from headwater.kernel.inputs import Duration, check_ms, one_by_one
from headwater.queue.handles import QueueHandle
from headwater.queue.inspecting import chosen, places_by_id, spots_of
from headwater.queue.replies import Reply, SettleReply
from headwater.queue.types import Delivery, QueueItem
from headwater.store.call import Argument, Call, Operation

# ── Acks ──────────────────────────────────────────────────────────────────────────────────────────
# What a consumer does with its deliveries: ack, nack, release, extend.
#
# A receipt is the name of a bundle, a point, and the number of a message. Deliveries of one bundle
# are sent as its name and the numbers, "*" for all of them, so that a batch that is acknowledged
# as a whole is one word.


# What pop returned, or its receipt.
OneDelivery: TypeAlias = "Delivery[Any] | str"
Deliveries: TypeAlias = "OneDelivery | Iterable[OneDelivery]"
# The same as parameters of operations.
GivenDeliveries: TypeAlias = Annotated[
    Deliveries,
    Param("Receipts, as pop returned them.", Spelling.TEXTS, called="receipts", metavar="RECEIPT"),
]
GivenMessages: TypeAlias = Annotated[
    Iterable[QueueItem | str],
    Param("Ids of messages, or places.", Spelling.TEXTS, called="ids", metavar="ID"),
]

BUNDLES_PER_CALL = 500
_RECEIPT = re.compile(r"\d+:-?\d+:\d+:\d+\.\d+")


def ack(queue: QueueHandle, deliveries: Iterable[Deliveries]) -> Operation[int]:
    """Acknowledge messages; return how many were still held."""
    return (yield from _settle(queue, "ack", 0, deliveries))


def nack(
    queue: QueueHandle, deliveries: Iterable[Deliveries], delay_ms: Duration
) -> Operation[int]:
    """Return messages, to be redelivered after a delay; returns how many were still held."""
    return (yield from _settle(queue, "nack", check_ms(delay_ms, "delay_ms"), deliveries))


def release(queue: QueueHandle, deliveries: Iterable[Deliveries]) -> Operation[int]:
    """Return messages as if they had not been taken; returns how many were still held."""
    return (yield from _settle(queue, "release", 0, deliveries))


def extend(
    queue: QueueHandle, deliveries: Iterable[Deliveries], ack_ms: Duration
) -> Operation[int]:
    """Give messages another deadline; return how many were still held."""
    return (yield from _settle(queue, "extend", check_ms(ack_ms, "ack_ms", 1), deliveries))


def _settle(
    queue: QueueHandle,
    action: Literal["ack", "nack", "release", "extend"],
    ms: int,
    deliveries: Iterable[Deliveries],
) -> Operation[int]:
    words = by_bundle(receipts_of(deliveries))
    return (yield from _in_parts(queue, "hw_queue_settle", words, 2, BUNDLES_PER_CALL, action, ms))


def _in_parts(
    queue: QueueHandle,
    function: str,
    words: Sequence[Argument],
    each: int,
    most: int,
    *head: Argument,
) -> Operation[int]:
    """Settle bundles, each of so many words, at most so many in a call; return the messages."""
    total = start = 0
    while start < len(words):
        # A repeat finds nothing left to settle. Only its count is lost with the first answer.
        args = (*head, *words[start : start + each * most])
        call = Call(function, queue.key, args, repeatable=True, messages=messages_settled)
        reply = SettleReply(*(yield call))
        total, start = total + reply.messages, start + each * reply.bundles
    return total


def messages_settled(_: Call, reply: Reply) -> int:
    """Count the messages that a call settled."""
    return SettleReply(*reply).messages


def receipts_of(deliveries: Iterable[Deliveries]) -> list[str]:
    """Return the receipts of deliveries; raises InvalidInput for what has none."""
    return one_by_one(deliveries, _receipt, "deliveries and receipts")


def _receipt(item: Any) -> str | None:
    """Return the receipt of one argument; None for what may be an iterable of others."""
    if isinstance(item, Delivery):
        if not item.receipt:
            raise InvalidInput(
                f"message {item.id} was taken without ack_ms, so there is nothing to acknowledge; "
                "pop with ack_ms="
            )
        return item.receipt
    if isinstance(item, str):
        if not _RECEIPT.fullmatch(item):
            raise InvalidInput(f"{item!r} is not a receipt; copy it as pop gave it")
        return item
    if isinstance(item, QueueItem):
        raise InvalidInput(
            f"message {item.id} was seen, not taken; give what pop with ack_ms= returned"
        )
    return None


def by_bundle(receipts: Iterable[str]) -> list[str]:
    """Gather receipts by bundle: name, numbers of its messages, name, numbers, ..."""
    bundles: dict[str, list[str]] = {}
    # A receipt that is named twice counts once, and not for another message.
    for receipt in dict.fromkeys(receipts):
        name, _, number = receipt.partition(".")
        bundles.setdefault(name, []).append(number)
    words: list[str] = []
    for name, numbers in bundles.items():
        whole = len(numbers) == int(name.split(":")[3])
        words += [name, "*" if whole else ",".join(numbers)]
    return words


# ── Failing ───────────────────────────────────────────────────────────────────────────────────────
# Failed attempts at messages of a queue: retry later, or give up; and why letters failed.


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
    return (yield from _in_parts(queue, "hw_queue_fail", words, REPORT_WORDS, REPORTS_PER_CALL))


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


# ── Promoting ─────────────────────────────────────────────────────────────────────────────────────
# Delayed messages of a queue that are to be delivered now.


def promote(queue: QueueHandle, messages: Iterable[QueueItem | str]) -> Operation[int]:
    """Have delayed messages delivered now; returns how many were still delayed."""
    words = by_bundle((yield from places_of(queue, messages)))
    return (yield from _in_parts(queue, "hw_queue_promote", words, 2, BUNDLES_PER_CALL))


def places_of(queue: QueueHandle, messages: Iterable[QueueItem | str]) -> Operation[list[str]]:
    """Return where delayed messages are; ids are looked up among all of them."""
    cure = "give several messages as peek() returned them, their places or their ids"
    places, ids = chosen(messages, cure)
    if ids:
        rest = yield from spots_of(queue, ["delayed"])
        places += yield from places_by_id(queue, ids, rest, "delayed")
    return places
