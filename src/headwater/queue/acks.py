"""What a consumer does with its deliveries: ack, nack, release, extend.

A receipt is the name of a bundle, a point, and the number of a message. Deliveries of one bundle
are sent as its name and the numbers, "*" for all of them, so that a batch that is acknowledged as
it was taken is one word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

from headwater.errors import InvalidInput
from headwater.inputs import check_ms
from headwater.queue.handles import QueueHandle
from headwater.queue.replies import Reply, SettleReply
from headwater.queue.types import Delivery
from headwater.store.call import Call, Operation

BUNDLES_PER_CALL = 500
_RECEIPT = re.compile(r"\d+:-?\d+:\d+:\d+\.\d+")


def ack(queue: QueueHandle, deliveries: Iterable[Delivery]) -> Operation[int]:
    """Acknowledge messages; return how many were still held."""
    return (yield from _settle(queue, "ack", 0, deliveries))


def nack(queue: QueueHandle, deliveries: Iterable[Delivery], delay_ms: int) -> Operation[int]:
    """Give messages back, to be redelivered after a delay; return how many were still held."""
    return (yield from _settle(queue, "nack", check_ms(delay_ms, "delay_ms"), deliveries))


def release(queue: QueueHandle, deliveries: Iterable[Delivery]) -> Operation[int]:
    """Give messages back as if they had not been taken; return how many were still held."""
    return (yield from _settle(queue, "release", 0, deliveries))


def extend(queue: QueueHandle, deliveries: Iterable[Delivery], ack_ms: int) -> Operation[int]:
    """Give messages another deadline; return how many were still held."""
    return (yield from _settle(queue, "extend", check_ms(ack_ms, "ack_ms", 1), deliveries))


def _settle(
    queue: QueueHandle,
    action: Literal["ack", "nack", "release", "extend"],
    ms: int,
    deliveries: Iterable[Delivery],
) -> Operation[int]:
    words = by_bundle(_receipt(delivery) for delivery in deliveries)
    total = start = 0
    while start < len(words):
        # A repeat finds nothing left to settle. Only its count is lost with the first answer.
        args = (action, ms, *words[start : start + 2 * BUNDLES_PER_CALL])
        call = Call("hw_queue_settle", queue.key, args, repeatable=True, messages=_messages_settled)
        reply = SettleReply(*(yield call))
        total, start = total + reply.messages, start + 2 * reply.bundles
    return total


def _messages_settled(_: Call, reply: Reply) -> int:
    return SettleReply(*reply).messages


def _receipt(delivery: Any) -> str:
    if not isinstance(delivery, Delivery):
        raise InvalidInput(
            f"give what pop returned, Delivery, not {type(delivery).__name__}; "
            "a list of them needs a star: ack(*deliveries)"
        )
    if not delivery.receipt:
        raise InvalidInput(
            f"message {delivery.id} was taken without ack_ms, so there is nothing to acknowledge; "
            "pop with ack_ms="
        )
    return delivery.receipt


def delivery_of(receipt: str) -> Delivery:
    """Return a delivery that has only a receipt; raises InvalidInput for what is none."""
    if not _RECEIPT.fullmatch(receipt):
        raise InvalidInput(f"{receipt!r} is not a receipt; copy it as pop gave it")
    return Delivery("", b"", 0, receipt)


def by_bundle(receipts: Iterable[str]) -> list[str]:
    """Gather receipts by bundle: name, numbers of its messages, name, numbers, ..."""
    bundles: dict[str, list[str]] = {}
    # One that is named twice counts once, and not for its neighbour.
    for receipt in dict.fromkeys(receipts):
        name, _, number = receipt.partition(".")
        bundles.setdefault(name, []).append(number)
    words: list[str] = []
    for name, numbers in bundles.items():
        whole = len(numbers) == int(name.split(":")[3])
        words += [name, "*" if whole else ",".join(numbers)]
    return words
