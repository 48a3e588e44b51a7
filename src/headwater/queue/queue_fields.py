"""The counters and priorities of a queue, for those who check how they agree."""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from headwater.store.scrubbing import Command

# The counters in the order in which they are packed; see lua/shared/10-layout.lua.
COUNTS: Final = (
    *("last", "pushed", "popped", "acked", "expired", "damaged", "unacked", "delayed", "retry"),
    *("dead", "largest", "marked", "generation", "waited", "soonest", "bundled", "asked"),
)
_PRIORITY = re.compile(r"-?\d+", re.ASCII)
TIMED: Final = ("delayed", "unacked", "retry")


class QueueHead(NamedTuple):
    """The counters of a queue by name, its priorities, and both as they are stored."""

    counts: dict[str, float]
    priorities: tuple[str, ...]
    raw: list[bytes | None]

    @property
    def sets(self) -> list[tuple[str, str]]:
        """Every sorted set of the queue, with its priority."""
        timed = [(name, priority) for name in TIMED for priority in self.priorities]
        return [*timed, ("dead", "")]

    def packed(self, **counts: float) -> bytes:
        """Return the counters as they are stored, some of them with another value."""
        old = self.raw[0] or b""
        values = list(struct.unpack(f">{len(old) // 8}d", old))
        for name, value in counts.items():
            values[COUNTS.index(name)] = value
        return struct.pack(f">{len(values)}d", *values)


def set_key(key: str, name: str, priority: str) -> str:
    """Return the key of a list or a sorted set of a queue."""
    return f"{key}:{name}:{priority}" if priority else f"{key}:{name}"


def head_command(key: str) -> Command:
    """Return the command that reads the fields of a queue."""
    return ("HMGET", key, "counts", "priorities")


def queue_head(values: list[bytes | None] | Exception) -> QueueHead | None:
    """Read the fields of a queue; None when they cannot be read, or the reply is an error."""
    if isinstance(values, Exception):
        return None
    counts, priorities = values
    if counts is None or len(counts) % 8 or len(counts) < 8 * len(COUNTS):
        return None
    numbers = struct.unpack(f">{len(counts) // 8}d", counts)
    names = tuple(p for p in (priorities or b"").decode("latin-1").split(",") if p)
    if not all(map(_PRIORITY.fullmatch, names)):
        return None
    return QueueHead(dict(zip(COUNTS, numbers, strict=False)), names, values)
