"""Order within a crew: of the messages of one tag that it holds, one is handled at a time.

The store delivers the messages of a tag to one member at a time, which states what it has when it
asks for more. In that member they start one after the other. When one fails, the messages after it
are returned to the store, which keeps them until their turn; so are those of a read that began
before the failure.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, NamedTuple

from headwater.workers.outcomes import Handled, Item


class AdmittedMessages(NamedTuple, Generic[Item]):
    """Messages to handle at once, and those to return; the others wait for their tag."""

    now: list[Item]
    never: list[Item]


class TagOrder(Generic[Item]):
    """Messages of a crew by tag: one that is handled, and those that wait for it.

    ``tag_of`` returns what orders a message, and something false when nothing does.
    """

    def __init__(self, tag_of: Callable[[Item], Hashable], key_of: Callable[[Item], Any]) -> None:
        self._tag_of = tag_of
        self._key_of = key_of
        # For each tag with a message that is being handled: the messages after it.
        self._waiting: dict[Hashable, deque[Item] | None] = {}
        # Messages in hand that have not failed; and tags that failed since a take began.
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

    def admit(self, items: Iterable[Item]) -> AdmittedMessages[Item]:
        """Return when messages are handled that were taken."""
        tag_of, key_of, waiting, failed = self._tag_of, self._key_of, self._waiting, self._failed
        found = AdmittedMessages[Item]([], [])
        begin = found.now.append
        with self._lock:
            for item in items:
                tag = tag_of(item)
                if tag in failed:
                    found.never.append(item)
                    continue
                self._owned[key_of(item)] = None
                if not tag:
                    begin(item)
                elif tag not in waiting:
                    waiting[tag] = None
                    begin(item)
                elif (behind := waiting[tag]) is None:
                    waiting[tag] = deque((item,))
                else:
                    behind.append(item)
        return found

    def done(self, item: Item) -> Item | None:
        """Note that a message succeeded; returns the one that may begin now, if there is any."""
        tag = self._tag_of(item)
        with self._lock:
            waiting = self._waiting.get(tag)
            if waiting:
                return waiting.popleft()
            self._waiting.pop(tag, None)
            return None

    def settled(self, handled: Iterable[Handled[Item]]) -> None:
        """Note that messages were acknowledged, or returned."""
        forget, key_of = self._owned.pop, self._key_of
        with self._lock:
            for item, _ in handled:
                forget(key_of(item), None)

    def failed(self, item: Item) -> list[Item]:
        """Note that a message did not succeed; returns those after it, which must not begin."""
        tag = self._tag_of(item)
        with self._lock:
            if not tag:
                self._owned.pop(self._key_of(item), None)
                return []
            self._failed.add(tag)
            behind = list(self._waiting.pop(tag, None) or ())
            for each in (item, *behind):
                self._owned.pop(self._key_of(each), None)
            return behind

    def take_waiting(self) -> list[Item]:
        """Return all messages that wait, and forget them; what is handled continues."""
        with self._lock:
            found = [item for waiting in self._waiting.values() for item in waiting or ()]
            self._waiting = dict.fromkeys(self._waiting)
            for item in found:
                self._failed.add(self._tag_of(item))
                self._owned.pop(self._key_of(item), None)
            return found
