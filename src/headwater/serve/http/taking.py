"""How a client takes its replies: whether some bytes go on, or it has stopped reading."""

from __future__ import annotations


class Taking:
    """Watches that what is written to a client is taken; ``written`` counts all bytes of it."""

    __slots__ = ("_since", "_to_take", "written")

    def __init__(self) -> None:
        self.written = 0
        # How many bytes had to be taken, and since when.
        self._to_take = 0
        self._since = 0.0

    def overdue(self, unsent: int, now: float, limit_ms: int) -> bool:
        """Return whether a client has not taken for so long what was written for it by then."""
        if unsent and self.written - unsent < self._to_take:
            return (now - self._since) * 1000 > limit_ms
        if unsent:
            self._to_take, self._since = self.written, now
        return False
