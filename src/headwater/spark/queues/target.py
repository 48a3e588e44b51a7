"""Which queue is meant."""

from __future__ import annotations

from dataclasses import dataclass, field

from headwater.client import Headwater
from headwater.spark.engine.connections import client


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """A queue of a store; goes to tasks, so it holds names only."""

    url: str = field(repr=False)
    queue: str

    @property
    def hw(self) -> Headwater:
        """This process's client of the store."""
        return client(self.url)
