"""What tests wait for instead of sleeping: the server's clock, and clients that are blocked."""

from __future__ import annotations

from headwater import Headwater
from headwater.store.faults import parse_info
from tests.support.servers import until


def server_ms(client: Headwater) -> int:
    """Read the clock of the store; the earliest when there are several servers."""
    return min(int(s) * 1000 + int(us) // 1000 for s, us in client.store.command("TIME"))


def let_pass(client: Headwater, ms: int) -> None:
    """Return when the store's clock has moved on by more than ``ms``."""
    begun = server_ms(client)
    until(lambda: server_ms(client) > begun + ms)


def blocked(client: Headwater) -> int:
    """Count the clients that block on the store's servers."""
    replies = client.store.command("INFO", "clients")
    return sum(int(parse_info(reply)["blocked_clients"]) for reply in replies)
