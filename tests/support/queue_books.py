"""A queue audited by plain reads: its counts, names and texts fit each other."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from typing import Any

from headwater import Delivery, Headwater, Queue, QueueItem
from headwater.queue.replies import count_messages

# What a test puts among the names of bundles.
NO_NAME = b"no name"
TIMED = ("delayed", "unacked", "retry", "dead")
_COUNTS = (
    *("last", "pushed", "popped", "acked", "expired", "damaged", "unacked", "delayed", "retry"),
    *("dead", "largest", "marked", "generation", "waited", "soonest", "bundled", "asked"),
)


def queue_key(queue: Queue) -> str:
    return f"hw:q:{{{queue.name}}}"


def keys_of(hw: Headwater, queue: Queue) -> set[str]:
    """Return what the keys of a queue are called behind its own."""
    (found,) = hw.store.command("KEYS", f"{queue_key(queue)}*")
    return {key.decode().removeprefix(queue_key(queue)) for key in found}


def counts_of(hw: Headwater, queue: Queue) -> dict[str, float]:
    """Return the counts that a queue keeps, by name."""
    (text,) = hw.store.command("HGET", queue_key(queue), "counts")
    found = struct.unpack(f">{len(_COUNTS)}d", text) if text else (0,) * len(_COUNTS)
    return dict(zip(_COUNTS, found, strict=True))


def audit(hw: Headwater, queue: Queue) -> None:
    """Recount a queue, and compare; see that no bundle is without its text, and no text is left."""
    own, keys, counts = queue_key(queue), keys_of(hw, queue), counts_of(hw, queue)
    lists = [key for key in keys if key.startswith(":ready:")]
    texts = [text for key in lists for text in hw.store.command("LRANGE", own + key, 0, -1)[0]]
    if lists:
        assert count_messages(texts) - len(texts) == counts["bundled"], "messages in lists"
    sets = [key for key in keys if key.split(":")[1:2] and key.split(":")[1] in TIMED]
    found = Counter[str]()
    numbers: list[bytes] = []
    for key in sets:
        for name in hw.store.command("ZRANGE", own + key, 0, -1)[0]:
            if name == NO_NAME:
                continue
            number, _, _, count, *_ = name.split(b":")
            numbers.append(number)
            found[key.split(":")[1]] += int(count)
    assert {part: found[part] for part in TIMED} == {part: counts[part] for part in TIMED}
    assert len(set(numbers)) == len(numbers), "a bundle is in two sets"
    assert sorted(numbers) == sorted(hw.store.command("HKEYS", f"{own}:bundles")[0])
    known = (hw.store.command("HGET", own, "priorities")[0] or b"").decode().split(",")
    used = {key.split(":")[2] for key in (*lists, *sets) if key != ":dead"}
    assert used <= set(known), "a priority in use is not known"


def contents(queue: Queue) -> list[tuple[Any, ...]]:
    """Return what is in a queue: values with their states, attempts and priorities."""
    return sorted((item.value, item.state, item.attempt, item.priority) for item in queue.scan())


# ── What tests of queues share ───────────────────────────────────────────────────────────────────


LONG_MS = 600_000
# Long enough for a few calls on a busy machine, short enough to wait for.
SHORT_MS = 1500


def values(deliveries: Sequence[Delivery | QueueItem]) -> list[bytes]:
    return [delivery.value for delivery in deliveries]


def ask_for(queue: Queue, count: int) -> None:
    """Let a consumer ask for so many messages, so that they are bundled for it."""
    queue.push(b"")
    assert len(queue.pop(count)) == 1


def ready_bundles(hw: Headwater, queue: Queue) -> list[bytes]:
    """Return what lies in the list of a queue's usual priority."""
    (found,) = hw.store.command("LRANGE", f"hw:q:{{{queue.name}}}:ready:0", 0, -1)
    return list(found)
