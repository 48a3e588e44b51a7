"""What tests of queues share."""

from __future__ import annotations

from headwater import Delivery, Headwater, Queue

LONG_MS = 600_000
# Long enough for a few calls on a busy machine, short enough to wait for.
SHORT_MS = 1500


def values(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.value for delivery in deliveries]


def ask_for(queue: Queue, count: int) -> None:
    """Let a consumer ask for so many messages, so that they are bundled for it."""
    queue.push(b"")
    assert len(queue.pop(count)) == 1


def ready_bundles(hw: Headwater, queue: Queue) -> list[bytes]:
    """Return what lies in the list of a queue's usual priority."""
    (found,) = hw.store.command("LRANGE", f"hw:q:{{{queue.name}}}:ready:0", 0, -1)
    return list(found)
