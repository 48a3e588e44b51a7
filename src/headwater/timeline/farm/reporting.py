"""What a farm reports of itself to the installed instrument; nothing while none is installed.

The names are listed in ``headwater.timeline.metrics``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from headwater.errors import HeadwaterError
from headwater.instrument import Event, Observation, current

T = TypeVar("T")


class FarmReports:
    """The reports of one farm, under its name without passwords."""

    def __init__(self, farm: str) -> None:
        self._farm = farm

    @property
    def wanted(self) -> bool:
        """Whether an instrument is installed; ask before computing what is only reported."""
        return current() is not None

    def count(self, name: str, n: int = 1) -> None:
        """Count something that takes no time of its own."""
        instrument = current()
        if instrument is not None:
            instrument.count(name, self._farm, n)

    def took(self, name: str, seconds: float) -> None:
        """Report a part of an operation that is over."""
        instrument = current()
        if instrument is not None:
            event = Event(name, self._farm, "ok", seconds)
            instrument.end(instrument.begin(name, self._farm), event)

    async def operation(
        self, name: str, work: Awaitable[T], messages: Callable[[T], int] | int
    ) -> T:
        """Await an operation and report it; ``messages`` are given, or counted in its result."""
        instrument = current()
        if instrument is None:
            return await work
        seen = Observation(instrument, name, self._farm)
        seen.messages = messages if isinstance(messages, int) else 0
        try:
            result = await work
        except HeadwaterError as error:
            seen.end("failed", error)
            raise
        except BaseException as error:
            # Cancelled, or a fault of ours: clusters may have done any part of it.
            seen.end("unknown", error)
            raise
        if not isinstance(messages, int):
            seen.messages = messages(result)
        seen.end()
        return result
