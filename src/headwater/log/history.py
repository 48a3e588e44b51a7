"""History: noticing that the store has lost what was read or written before.

A failover or a crash may lose the newest messages, and then other messages get their offsets. The
stream keeps from which offset on each server process has written it (lua/shared/12-history.lua). A
handle remembers that together with how far it has come. When both change in a way that only a loss
explains, LostFuture names the offsets.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self

from headwater.errors import LostFuture

# How many starts a history keeps; as in the server's function.
MOST_STARTS: Final = 16


class SeenHistory(NamedTuple):
    """What a handle knows: the stream and its history, and the offset that it has reached.

    ``lost`` is the first offset of a loss that was reported, 0 without one. ``woken`` is how far a
    blocked read has come since: it is woken by messages alone, and does not know their history.
    """

    created: bytes = b""
    history: bytes = b""
    upto: int = 0
    lost: int = 0
    woken: int = 0

    def text(self) -> str:
        """Return stream and history in one text, to be kept beside a position."""
        return f"{self.created.decode()} {self.history.decode()}".rstrip()

    @classmethod
    def of_text(cls, text: str, upto: int) -> Self:
        """Return what is known at a position beside which a text was kept."""
        created, _, history = text.encode().partition(b" ")
        return cls(created, history, upto)


NOTHING_SEEN = SeenHistory()


def diverged_at(known: bytes, found: bytes) -> int:
    """Return the first offset from which on two histories differ; 0 when they do not."""
    if known == found:
        return 0
    before, now = (dict(start.split(b":") for start in text.split()) for text in (known, found))
    # A full history has lost its oldest starts, which says nothing.
    full = (starts for starts in (before, now) if len(starts) >= MOST_STARTS)
    oldest = max((min(map(int, starts)) for starts in full), default=0)
    tokens = [token for token in before.keys() ^ now.keys() if int(token) >= oldest]
    return min((int(before.get(token) or now[token]) for token in tokens), default=0)


def first_lost(known: bytes, upto: int, found: bytes, last: int) -> int:
    """Return the first lost offset for a client that had reached ``upto``; 0 for none.

    ``known`` is the history as it was then, ``found`` the one of a stream that ends at ``last``.
    """
    starts = (diverged_at(known, found), last + 1)
    return min((start for start in starts if 0 < start <= upto), default=0)


def go_on(
    seen: SeenHistory, stream: str, at: int, upto: int, created: bytes, history: bytes, last: int
) -> tuple[SeenHistory, LostFuture | None]:
    """Return what is known after a look at a stream, and the error if messages were lost.

    ``at`` is where the caller wants to continue, ``upto`` how far it has come with that, and
    ``last`` where the stream ends. After a loss the error stays until the caller goes back to its
    begin.
    """
    if created != seen.created:
        return SeenHistory(created, history, upto), None
    if seen.lost:
        if at > seen.lost:
            return seen, LostFuture(stream, seen.lost, at - 1)
        return SeenHistory(created, history, upto), None
    reached = max(seen.upto, seen.woken)
    # What woke a read may have been written after the server changed: that is not a loss.
    known = reached if last < reached else seen.upto
    if first := first_lost(seen.history, known, history, last):
        return SeenHistory(created, history, first - 1, first), LostFuture(stream, first, reached)
    return SeenHistory(created, history, max(reached, upto)), None
