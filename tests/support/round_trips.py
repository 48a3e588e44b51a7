"""How often a client waits for its servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headwater


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
