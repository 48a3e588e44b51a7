"""When an alarm began that does not know this itself: recorded when it is first seen.

The record is in the store, so that all servers show the same, even after a restart. It is removed
when the alarm is over, and costs a call only when something begins or ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

from headwater.aio_client import AsyncHeadwater
from headwater.errors import StoreError
from headwater.store.presence import all_notes, keep_notes

log = logging.getLogger("headwater.metrics")

ALARMS: Final = "hw:{alarms}"
# At most this many alarms have a recorded time; a key is cut at this many characters.
_MOST: Final = 500
_KEY_CHARS: Final = 200
# Another server may have noted or forgotten something.
_FRESH_S: Final = 60.0
# A page waits for the store no longer than this.
_PATIENCE_S: Final = 0.5


class FirstSeen:
    """When matters were first seen; with ``writes`` they are noted, else only read."""

    def __init__(
        self, hw: AsyncHeadwater, *, writes: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._hw = hw
        self._writes = writes
        self._clock = clock
        self._read_at = -float("inf")
        self._known: dict[str, int] = {}
        # Those of them that are not noted.
        self._remembered: dict[str, int] = {}

    async def times(self, keys: Collection[str], now_ms: int) -> dict[str, int]:
        """Return since when each is seen; all that is not among the keys is over.

        A store that refuses notes is often one of the matters: this process then remembers them.
        """
        current = {key[:_KEY_CHARS] for key in keys}
        if self._clock() - self._read_at > _FRESH_S:
            await self._try(self._read())
        new = [one for one in sorted(current) if one not in self._known][:_MOST]
        over = [one for one in self._known if one not in current]
        if (new or over) and not (self._writes and await self._try(self._note(new, over))):
            for one in over:
                del self._known[one]
            self._known |= {one: self._remembered.setdefault(one, now_ms) for one in new}
        self._remembered = {one: self._remembered[one] for one in self._remembered.keys() & current}
        return self.known(keys)

    def known(self, keys: Collection[str]) -> dict[str, int]:
        """Return since when each is seen, as far as this process knows; asks and notes nothing."""
        cut = {key: key[:_KEY_CHARS] for key in keys}
        return {key: self._known[one] for key, one in cut.items() if one in self._known}

    async def _try(self, work: Coroutine[Any, Any, None]) -> bool:
        """Return whether the store took part; asks again after a while if it did not."""
        self._read_at = self._clock()
        try:
            await work
        except StoreError as error:
            log.debug("%s cannot record alarms: %s", self._hw.store.where, error)
            return False
        return True

    async def _read(self) -> None:
        noted = await self._hw.store.run(all_notes(ALARMS), _PATIENCE_S)
        self._known = {key: note.at_ms for key, note in noted.items()}

    async def _note(self, new: list[str], over: list[str]) -> None:
        notes = dict.fromkeys(new, "")
        kept = keep_notes(ALARMS, notes, over, most=_MOST, replace=False)
        await self._hw.store.run(kept, _PATIENCE_S)
        await self._read()
