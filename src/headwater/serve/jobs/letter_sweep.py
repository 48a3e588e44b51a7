"""All groups and queues of a store that have dead letters, some at a time, in a fixed order.

Streams come first and then queues, each by name, so that a caller that knows the last one can
continue after it: a page of the console, or a job that another process has begun.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.views import overview

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater

# So many streams or queues are asked for in one call.
_SLICE: Final = 100
_KINDS: Final = ("s", "q")


class SweepPlace(NamedTuple):
    """A place in the order: of a stream (``s``) all groups up to this one, or of a queue (``q``).

    Without a group, all of the stream. An empty kind is before everything.
    """

    kind: str = ""
    name: str = ""
    group: str = ""


class LetterHolder(NamedTuple):
    """A group or a queue with dead letters; ``group`` is empty for a queue."""

    name: str
    group: str
    dead: int

    @property
    def place(self) -> SweepPlace:
        """Its place in the order."""
        return SweepPlace("s" if self.group else "q", self.name, self.group)


class LetterSweep:
    """Looks through the streams and queues that are allowed, behind some place."""

    def __init__(
        self, hw: AsyncHeadwater, allowed: Callable[[str], bool], after: SweepPlace
    ) -> None:
        self._hw = hw
        self._allowed = allowed
        self._after = after
        self._names: list[tuple[str, str]] | None = None
        self._at = 0

    @property
    def total(self) -> int:
        """How many streams and queues there are."""
        return len(self._names or ())

    @property
    def looked(self) -> int:
        """How many of them are behind: they were looked at now, or before this began."""
        return self._at

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self._names is not None and self._at >= len(self._names)

    @property
    def reached(self) -> SweepPlace:
        """The last stream or queue that was looked at."""
        return SweepPlace(*self._names[self._at - 1]) if self._names and self._at else self._after

    async def more(self) -> list[LetterHolder]:
        """Look at some more; returns those that have dead letters, in order."""
        names = self._names = self._names if self._names is not None else await self._open()
        some = names[self._at : self._at + _SLICE]
        self._at += len(some)
        streams = [name for kind, name in some if kind == "s"]
        queues = [name for kind, name in some if kind == "q"]
        apart = self._hw.store.kind == "cluster"
        look = overview.look_apart if apart else overview.look_together
        found = await self._hw.store.run(look(streams, queues))
        rows = sorted((row.stream, row.group.name, row.group.dead) for row in found.groups)
        holders = [LetterHolder(*row) for row in rows]
        holders += [LetterHolder(one.name, "", one.dead) for one in found.queues]
        *after, group = self._after
        # A queue may have the name of a stream.
        return [
            one for one in holders if one.dead and ([*one.place[:2]] != after or one.group > group)
        ]

    async def _open(self) -> list[tuple[str, str]]:
        streams, queues = await self._hw.streams(), await self._hw.queues()
        names = [("s", name) for name in streams if self._allowed(name)]
        names += [("q", name) for name in queues if self._allowed(name)]
        kind, name, group = self._after
        if kind:
            order = [(_KINDS.index(kind), name) for kind, name in names]
            # If some groups of a stream were looked at, the others are next.
            cut = bisect_left if group else bisect_right
            self._at = cut(order, (_KINDS.index(kind), name))
        return names
