"""What a consumer does with its deliveries: ack, nack, release, extend.

A receipt is the name of a bundle, a point, and the number of a message. Deliveries of one bundle
are sent as its name and the numbers, "*" for all of them, so that a batch that is acknowledged as a
whole is one word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from headwater.errors import InvalidInput
from headwater.kernel.inputs import DEADLINE, Duration, check_ms, one_by_one
from headwater.queue.handles import QueueHandle
from headwater.queue.replies import Reply, SettleReply
from headwater.queue.types import Delivery, QueueItem
from headwater.store.call import Call, Operation

# What pop returned, or its receipt.
OneDelivery: TypeAlias = "Delivery[Any] | str"
Deliveries: TypeAlias = "OneDelivery | Iterable[OneDelivery]"

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
    return (yield from _settle(queue, "extend", check_ms(ack_ms, DEADLINE, 1), deliveries))


def _settle(
    queue: QueueHandle,
    action: Literal["ack", "nack", "release", "extend"],
    ms: int,
    deliveries: Iterable[Deliveries],
) -> Operation[int]:
    words = by_bundle(receipts_of(deliveries))
    total = start = 0
    while start < len(words):
        # A repeat finds nothing left to settle. Only its count is lost with the first answer.
        args = (action, ms, *words[start : start + 2 * BUNDLES_PER_CALL])
        call = Call("hw_queue_settle", queue.key, args, repeatable=True, messages=messages_settled)
        reply = SettleReply(*(yield call))
        total, start = total + reply.messages, start + 2 * reply.bundles
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
