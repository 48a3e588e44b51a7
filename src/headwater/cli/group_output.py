"""What commands on groups print, of streams and of topics."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.log.types import GroupInfo


def _live(facts: GroupInfo) -> int:
    from headwater.views.overview import live_members

    return len(live_members(facts, int(time.time() * 1000)))


NO_GROUPS = "no groups: a group is created by its first read"

# What is shown of a row that has a ``group``.
GROUP_COLUMNS: dict[str, Callable[[Any], object]] = {
    "group": lambda row: row.group.name,
    "next": lambda row: row.group.next,
    "ack_offset": lambda row: row.group.ack_offset,
    "pending": lambda row: row.group.pending,
    "lag": lambda row: row.group.lag,
    "missed": lambda row: row.group.missed,
    "expired": lambda row: row.group.expired,
    "dead": lambda row: row.group.dead,
    "members": lambda row: _live(row.group),
    "waiting": lambda row: row.group.waiting,
}


def terms_text(facts: GroupInfo) -> str:
    """Return how a group hands out and what it does with dead letters."""
    return (
        f"max pending {facts.max_pending or 'without limit'}, "
        f"dead letters {facts.dead_letters or 'are dropped'}"
        f"{', in the order of each tag' if facts.ordered else ''}"
    )
