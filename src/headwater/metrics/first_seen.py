"""Since when something is the case that says nothing of its beginning: noted when first seen.

The note lies in the store, so that all servers say the same, also after a restart. It goes when the
matter is over, and costs a call only when something begins or ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

from headwater.aio_client import AsyncHeadwater
from headwater.store.notes import all_notes, keep_notes

ALARMS: Final = "hw:{alarms}"
# So many are noted, and more have no time; a key is cut at so many characters.
_MOST: Final = 500
_KEY_CHARS: Final = 200
# Another server may have noted or forgotten something.
_FRESH_S: Final = 60.0


class FirstSeen:
    """When matters were first seen; with ``writes`` they are noted, else only remembered."""

    def __init__(
        self, hw: AsyncHeadwater, *, writes: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._hw = hw
        self._writes = writes
        self._clock = clock
        self._read_at = -float("inf")
        self._known: dict[str, int] = {}

    async def times(self, keys: Collection[str], now_ms: int) -> dict[str, int]:
        """Return since when each is seen; all that is not among the keys is over.

        Raises errors of the store.
        """
        current = {key[:_KEY_CHARS] for key in keys}
        if self._clock() - self._read_at > _FRESH_S:
            await self._read()
        new = [one for one in sorted(current) if one not in self._known][:_MOST]
        over = [one for one in self._known if one not in current]
        if new or over:
            await self._change(new, over, now_ms)
        return self.known(keys)

    def known(self, keys: Collection[str]) -> dict[str, int]:
        """Return since when each is seen, as far as this process knows; asks and notes nothing."""
        cut = {key: key[:_KEY_CHARS] for key in keys}
        return {key: self._known[one] for key, one in cut.items() if one in self._known}

    async def _read(self) -> None:
        if self._writes:
            noted = await self._hw.store.run(all_notes(ALARMS))
            self._known = {key: note.at_ms for key, note in noted.items()}
        self._read_at = self._clock()

    async def _change(self, new: list[str], over: list[str], now_ms: int) -> None:
        if self._writes:
            notes = dict.fromkeys(new, "")
            await self._hw.store.run(keep_notes(ALARMS, notes, over, most=_MOST, replace=False))
            await self._read()
            return
        for one in over:
            del self._known[one]
        self._known.update(dict.fromkeys(new, now_ms))
