"""Which dirty list is meant: an Ick or a channel of a store."""

from __future__ import annotations

from dataclasses import dataclass, field

from headwater.client import Headwater
from headwater.ick.ick import Ick, IckChannel
from headwater.spark.engine.connections import client


@dataclass(frozen=True, slots=True)
class DirtyList:
    """An Ick or a channel; goes to tasks, so it holds names only."""

    url: str = field(repr=False)
    name: str
    is_channel: bool
    # Of a channel that may be new.
    shards: int | None = None

    @property
    def hw(self) -> Headwater:
        """This process's client of the store."""
        return client(self.url)

    @property
    def ick(self) -> Ick:
        """The Ick."""
        return self.hw.ick(self.name)

    @property
    def channel(self) -> IckChannel:
        """The channel, as a consumer that reserves nothing sees it."""
        return self.hw.ick_channel(self.name, self.shards)

    def exists(self) -> bool:
        """Return whether it is there. Raises InvalidInput for what is no name, and NotAnIck."""
        found = self.channel.stats() if self.is_channel else self.ick.stats()
        return found is not None
