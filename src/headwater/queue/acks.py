"""What a consumer says of its deliveries: done, again, not mine, more time.

A receipt is ``number:level:attempt:count.place``: deliveries of one parcel travel as its head and
the places, "*" for all of them, so that a batch that is done as it was taken is one word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

from headwater.errors import InvalidInput
from headwater.inputs import check_ms
from headwater.queue.handles import QueueHandle
from headwater.queue.types import Delivery
from headwater.store.call import Call, Operation

PARCELS_PER_CALL = 500
_RECEIPT = re.compile(r"\d+:-?\d+:\d+:\d+\.\d+")


def ack(queue: QueueHandle, deliveries: Iterable[Delivery]) -> Operation[int]:
    """Say that messages are done; returns how many were still held."""
    return (yield from _settle(queue, "ack", 0, deliveries))


def nack(queue: QueueHandle, deliveries: Iterable[Delivery], delay_ms: int) -> Operation[int]:
    """Give messages back, to come again after a delay; returns how many were still held."""
    return (yield from _settle(queue, "nack", check_ms(delay_ms, "delay_ms"), deliveries))


def release(queue: QueueHandle, deliveries: Iterable[Delivery]) -> Operation[int]:
    """Give messages back as if they had not been taken; returns how many were still held."""
    return (yield from _settle(queue, "release", 0, deliveries))


def extend(queue: QueueHandle, deliveries: Iterable[Delivery], ack_ms: int) -> Operation[int]:
    """Hold messages for longer; returns how many were still held."""
    return (yield from _settle(queue, "extend", check_ms(ack_ms, "ack_ms", 1), deliveries))


def _settle(
    queue: QueueHandle,
    deed: Literal["ack", "nack", "release", "extend"],
    ms: int,
    deliveries: Iterable[Delivery],
) -> Operation[int]:
    words = places(_receipt(delivery) for delivery in deliveries)
    total = 0
    for start in range(0, len(words), 2 * PARCELS_PER_CALL):
        part = words[start : start + 2 * PARCELS_PER_CALL]
        # A repeat finds nothing left to settle. Only its count is lost with the first answer.
        total += yield Call("hw_queue_settle", queue.key, (deed, ms, *part), repeatable=True)
    return total


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
    """Give what a receipt alone can settle; raises InvalidInput for what is none."""
    if not _RECEIPT.fullmatch(receipt):
        raise InvalidInput(f"{receipt!r} is not a receipt; copy it as pop gave it")
    return Delivery("", b"", 0, receipt)


def places(receipts: Iterable[str]) -> list[str]:
    """Gather receipts by parcel: head, places, head, places, ..."""
    parcels: dict[str, list[str]] = {}
    # One that is named twice counts once, and not for its neighbour.
    for receipt in dict.fromkeys(receipts):
        head, _, place = receipt.partition(".")
        parcels.setdefault(head, []).append(place)
    words: list[str] = []
    for head, found in parcels.items():
        whole = len(found) == int(head.rpartition(":")[2])
        words += [head, "*" if whole else ",".join(found)]
    return words
