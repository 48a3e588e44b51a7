"""An instrument that remembers what it was told."""

from __future__ import annotations

from collections import Counter
from typing import Any

from headwater.kernel.instrument import Event


class Recorder:
    """Remembers events in their order, counts, and what was begun and not ended."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        self.open: Counter[tuple[str, str]] = Counter()

    def begin(self, name: str, object: str) -> Any:
        self.open[name, object] += 1
        return name, object

    def end(self, token: Any, event: Event) -> None:
        assert token == (event.name, event.object)
        self.open[token] -= 1
        self.events.append(event)

    def count(self, name: str, object: str, n: int = 1) -> None:
        self.counts[name, object] += n

    def named(self, name: str) -> list[Event]:
        """Return the events of one name."""
        return [event for event in self.events if event.name == name]

    def last(self, name: str) -> Event:
        """Return the latest event of one name."""
        return self.named(name)[-1]
