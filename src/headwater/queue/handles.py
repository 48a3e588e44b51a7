"""Handles: what operations know of the queue they work on, its names and cached values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from headwater.kernel.codecs import Coder
from headwater.queue.keys import QUEUES, queue_key
from headwater.queue.types import DecodedDelivery, Delivery
from headwater.store.call import Call, Operation, Token


class QueueHandle:
    """A queue as its operations see it.

    ``registered`` is shared by all handles of a client: the keys that it has registered.
    ``damaged`` is how many damaged messages were logged, so that each is logged once. ``coder``
    encodes and decodes values, if there is one.
    """

    __slots__ = ("coder", "damaged", "key", "member", "name", "registered", "waiters")

    def __init__(
        self, name: str, registered: set[str], member: str, coder: Coder[Any] | None = None
    ) -> None:
        self.key = queue_key(name)
        self.name = name
        self.registered = registered
        self.member = member
        self.coder = coder
        self.damaged = 0
        self.waiters: list[str] = []

    def encoded(self, value: Any) -> bytes | str:
        """Return a value as it is pushed."""
        return cast("bytes | str", value) if self.coder is None else self.coder.encode(value)

    def encoded_values(self, values: Iterable[Any]) -> Iterable[bytes | str]:
        """Return values as they are pushed."""
        return values if self.coder is None else [self.coder.encode(value) for value in values]

    def decoded(self, deliveries: list[Delivery]) -> list[Any]:
        """Return deliveries with their values decoded."""
        coder = self.coder
        if coder is None:
            return deliveries
        made: Callable[..., Delivery[Any]] = DecodedDelivery
        return [
            made(
                delivery.id,
                delivery.value,
                delivery.attempt,
                delivery.receipt,
                coder.decode(delivery.value, "message", delivery.id, "of queue", self.name),
                delivery.headers,
            )
            for delivery in deliveries
        ]

    def register(self) -> Operation[None]:
        """Register the name of this queue, once per client."""
        if self.key not in self.registered:
            yield Call("hw_registry_add", QUEUES, (self.name,), repeatable=True)
            self.registered.add(self.key)

    def take_waiter(self) -> Operation[str]:
        """Return a name to wait under; put it back once nothing can come for it any more."""
        try:
            return self.waiters.pop()
        except IndexError:
            return f"{self.member}.{(yield Token())}"


def list_queues() -> Operation[list[str]]:
    """List the names of all queues, sorted."""
    names = yield Call("hw_registry_list", QUEUES, read_only=True)
    return sorted(name.decode() for name in names)
