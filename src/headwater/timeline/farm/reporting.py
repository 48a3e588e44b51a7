"""What a farm reports of itself to the installed instrument; nothing while none is installed.

The names are listed in ``headwater.timeline.metrics``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from headwater import instrument
from headwater.errors import HeadwaterError

T = TypeVar("T")


class FarmReports:
    """The reports of one farm, under its name without passwords."""

    def __init__(self, farm: str) -> None:
        self._farm = farm

    @property
    def wanted(self) -> bool:
        """Whether an instrument is installed; ask before computing what is only reported."""
        return instrument.current() is not None

    def count(self, name: str, n: int = 1) -> None:
        """Count something that takes no time of its own."""
        instrument.count(name, self._farm, n)

    def took(self, name: str, seconds: float) -> None:
        """Report a part of an operation that is over."""
        installed = instrument.current()
        if installed is not None:
            event = instrument.Event(name, self._farm, "ok", seconds)
            installed.end(installed.begin(name, self._farm), event)

    async def operation(
        self, name: str, work: Awaitable[T], messages: Callable[[T], int] | int
    ) -> T:
        """Await an operation and report it; ``messages`` are given, or counted in its result."""
        observation = instrument.observe(name, self._farm)
        if observation is None:
            return await work
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
