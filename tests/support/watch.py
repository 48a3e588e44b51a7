"""What tests wait for instead of sleeping: the server's clock, and clients that are blocked."""

from __future__ import annotations

import time

from headwater import Headwater
from headwater.store.faults import parse_info


def server_ms(client: Headwater) -> int:
    """Read the clock of the store; the earliest when there are several servers."""
    return min(int(s) * 1000 + int(us) // 1000 for s, us in client.store.command("TIME"))


def let_pass(client: Headwater, ms: int) -> None:
    """Return when the store's clock has moved on by more than ``ms``."""
    due = server_ms(client) + ms
    # Most of it goes by without a question: a store is asked as seldom as it can be.
    while (left_ms := due - server_ms(client)) >= 0:
        time.sleep((left_ms + 1) / 1000)


def blocked(client: Headwater) -> int:
    """Count the clients that block on the store's servers."""
    replies = client.store.command("INFO", "clients")
    return sum(int(parse_info(reply)["blocked_clients"]) for reply in replies)
