"""Order within a crew: of the messages of one tag that it holds, one is handled at a time.

The store hands the messages of a tag to one member at a time, which says what it has when it asks
for more. In that member they begin one after the other. When one fails, those behind it go back to
the store, which keeps them until their turn; so do those that a read brings which began before.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from enum import Enum
from typing import Any, Generic

from headwater.workers.handled import Item


class LaneTurn(Enum):
    """When a message is handled: at once, after others of its tag, or not here."""

    NOW = 1
    LATER = 2
    NEVER = 3


class Lanes(Generic[Item]):
    """Messages of a crew by tag: one that is handled, and those that wait behind it."""

    def __init__(
        self, tag_of: Callable[[Item], Hashable | None], key_of: Callable[[Item], Any]
    ) -> None:
        self._tag_of = tag_of
        self._key_of = key_of
        self._waiting: dict[Hashable, deque[Item]] = {}
        # What is in hand and has not failed; and tags that failed since a take began.
        self._owned: dict[Any, None] = {}
        self._failed: set[Hashable] = set()
        self._lock = threading.Lock()

    def owned(self) -> list[Any]:
        """Return the keys of all that is in hand and did not fail."""
        with self._lock:
            return list(self._owned)

    def begin_take(self) -> None:
        """Note that messages are asked for."""
        with self._lock:
            self._failed.clear()

    def admit(self, item: Item) -> LaneTurn:
        """Return when a message is handled that was taken."""
        tag = self._tag_of(item)
        with self._lock:
            if tag is None:
                return LaneTurn.NOW
            if tag in self._failed:
                return LaneTurn.NEVER
            self._owned[self._key_of(item)] = None
            waiting = self._waiting.get(tag)
            if waiting is None:
                self._waiting[tag] = deque()
                return LaneTurn.NOW
            waiting.append(item)
            return LaneTurn.LATER

    def done(self, item: Item) -> Item | None:
        """Note that a message succeeded; returns the one that may begin now, if there is any."""
        tag = self._tag_of(item)
        with self._lock:
            waiting = self._waiting.get(tag)
            if waiting:
                return waiting.popleft()
            self._waiting.pop(tag, None)
            return None

    def settled(self, items: Iterable[Item]) -> None:
        """Note that messages were acknowledged, or returned."""
        with self._lock:
            for item in items:
                self._owned.pop(self._key_of(item), None)

    def failed(self, item: Item) -> list[Item]:
        """Note that a message did not succeed; returns those behind it, which must not begin."""
        tag = self._tag_of(item)
        if tag is None:
            return []
        with self._lock:
            self._failed.add(tag)
            behind = list(self._waiting.pop(tag, ()))
            for each in (item, *behind):
                self._owned.pop(self._key_of(each), None)
            return behind

    def take_waiting(self) -> list[Item]:
        """Return all messages that wait, and forget them; what is handled goes on."""
        with self._lock:
            found = [item for waiting in self._waiting.values() for item in waiting]
            for waiting in self._waiting.values():
                waiting.clear()
            for item in found:
                self._failed.add(self._tag_of(item))
                self._owned.pop(self._key_of(item), None)
            return found
