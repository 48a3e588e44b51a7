"""What tests wait for instead of sleeping: the server's clock, and clients that are blocked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

import headwater
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


# Faults that are injected while something is at work: one that is not injected fails the test.


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Do some work in a thread during a block, and to its end; raises what fails in it."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        yield
        done.result()


# ── How often a client waits for its servers ─────────────────────────────────────────────────────


class RoundTrips:
    """Counts the round trips of a client from now on; what goes together counts once."""

    def __init__(self, hw: headwater.Headwater, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        connections = hw.store.connections
        for verb in ("send", "send_all"):
            monkeypatch.setattr(connections, verb, self._counting(getattr(connections, verb)))

    def _counting(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **words: Any) -> Any:
            self.count += 1
            return send(*args, **words)

        return counting
