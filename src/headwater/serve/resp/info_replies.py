"""What is said of a stream and of a group, under names as Redis spells them."""

from __future__ import annotations

from typing import Any

from headwater.log.types import GroupInfo, StreamInfo


def stream_facts(found: StreamInfo) -> dict[str, Any]:
    """Return where a stream stands."""
    return {
        "name": found.name,
        "first": found.first,
        "last": found.last,
        "length": found.length,
        "bytes": found.bytes,
        "nodes": found.nodes,
        "created-ms": found.created_ms,
        "last-time-ms": found.last_time_ms,
        "groups": list(found.groups),
        "readers": dict(found.readers),
    }


def group_facts(found: GroupInfo) -> dict[str, Any]:
    """Return where a group stands."""
    return {
        "name": found.name,
        "next": found.next,
        "ack-offset": found.ack_offset,
        "pending": found.pending,
        "lag": found.lag,
        "missed": found.missed,
        "expired": found.expired,
        "dead": found.dead,
        "dead-letters": found.dead_letters,
        "max-pending": found.max_pending,
        "ordered": found.ordered,
        "limits": str(found.limits),
        "waiting": found.waiting,
        "members": dict(found.members),
    }
