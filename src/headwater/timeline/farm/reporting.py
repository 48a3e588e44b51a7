"""What a farm reports of itself to an instrument; nothing while there is none.

The names are listed in ``headwater.timeline.metrics``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from headwater.errors import HeadwaterError
from headwater.kernel.instrument import Event, Instrument, Observation, current

T = TypeVar("T")


class FarmReports:
    """The reports of one farm, under its name without passwords.

    They go to ``own`` if that is set, else to the installed instrument.
    """

    def __init__(self, farm: str) -> None:
        self.farm = farm
        self.own: Instrument | None = None

    @property
    def instrument(self) -> Instrument | None:
        """The instrument that is reported to; look for one before computing what is reported."""
        return current() if self.own is None else self.own

    def count(self, name: str, n: int = 1) -> None:
        """Count something that takes no time of its own."""
        instrument = self.instrument
        if instrument is not None:
            instrument.count(name, self.farm, n)

    def took(self, name: str, seconds: float) -> None:
        """Report a part of an operation that is over."""
        instrument = self.instrument
        if instrument is not None:
            event = Event(name, self.farm, "ok", seconds)
            instrument.end(instrument.begin(name, self.farm), event)

    async def operation(
        self, name: str, work: Awaitable[T], messages: Callable[[T], int] | int
    ) -> T:
        """Await an operation and report it; ``messages`` are given, or counted in its result."""
        instrument = self.instrument
        if instrument is None:
            return await work
        observation = Observation(instrument, name, self.farm)
        if isinstance(messages, int):
            observation.messages = messages
        try:
            result = await work
        except HeadwaterError as error:
            observation.end("failed", error)
            raise
        except BaseException as error:
            # Cancelled, or a fault of ours: clusters may have done any part of it.
            observation.end("unknown", error)
            raise
        if not isinstance(messages, int):
            observation.messages = messages(result)
        observation.end()
        return result
