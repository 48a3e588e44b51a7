"""What operations know of the queue they work on: its names, and what is worth remembering."""

from __future__ import annotations

from headwater.queue.keys import QUEUES, queue_key
from headwater.store.call import Call, Operation, Token


class QueueHandle:
    """A queue as its operations see it.

    ``registered`` is shared by all handles of a client: the keys that it has registered.
    ``damaged`` is how many damaged messages were logged, so that each is logged once.
    """

    __slots__ = ("damaged", "key", "member", "name", "registered", "waiters")

    def __init__(self, name: str, registered: set[str], member: str) -> None:
        self.key = queue_key(name)
        self.name = name
        self.registered = registered
        self.member = member
        self.damaged = 0
        self.waiters: list[str] = []

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
