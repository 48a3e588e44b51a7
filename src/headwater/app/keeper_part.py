"""Housekeeping as a part of an application: rounds over all objects of the store."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, ClassVar

from headwater.app.parts import Fault, Part, PartCounts
from headwater.app.resources import Resources
from headwater.client import Headwater, keep_each
from headwater.errors import StoreError
from headwater.kernel.failures import Outage, store_may_recover
from headwater.kernel.inputs import Span, check_span
from headwater.kernel.stopping import StopSignal

log = logging.getLogger("headwater.app")


class Housekeeper:
    """Keeps every stream, queue and channel of a store, round after round."""

    def __init__(self, hw: Headwater, interval_ms: int) -> None:
        self._hw = hw
        self._interval_s = interval_ms / 1000
        self._stop = StopSignal()
        self.rounds = 0
        self.faults = 0

    def run(self) -> None:
        """Keep until ``stop``; an outage of the store is waited out."""
        outage = Outage("the housekeeper", log)
        while not self._stop.is_set():
            try:
                self._keep_all()
                outage.over()
                self.rounds += 1
                self._stop.wait(self._interval_s)
            except StoreError as error:
                if not store_may_recover(error):
                    raise
                self._stop.wait(outage.meet(error))

    def stop(self) -> None:
        """Ask ``run`` to end after the current object."""
        self._stop.set()

    def _keep_all(self) -> None:
        for _ in keep_each(self._hw, tell_fault=self._tell_fault, stop=self._stop.is_set):
            pass

    def _tell_fault(self, fault: str) -> None:
        self.faults += 1
        log.error("housekeeping left something undone: %s", fault)


class KeeperPart(Part):
    """Seals, evicts, compacts and expires, as ``headwater keep`` does."""

    kind: ClassVar[str] = "keep"

    def __init__(self, name: str, every: Span) -> None:
        super().__init__(name, "store")
        self._every_ms = check_span(every, "every", 10)

    def check(self, resources: Resources) -> Iterator[Fault]:  # noqa: ARG002
        """Find nothing: what it works on need not exist."""
        return iter(())

    def open(self, resources: Resources) -> Housekeeper:
        """Return the housekeeper."""
        return Housekeeper(resources.hw, self._every_ms)

    def counts(self, work: Any) -> PartCounts:
        """Return the rounds, and how many objects could not be kept."""
        return PartCounts(work.rounds, work.faults)
