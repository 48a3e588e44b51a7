"""Housekeeping as a part of an application: rounds over all objects of the store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from headwater.app.parts import Fault, Part, PartCounts
from headwater.app.resources import Resources
from headwater.client import Headwater
from headwater.errors import StoreError, UnreadableNode
from headwater.inputs import Span, check_span
from headwater.log.handles import StreamHandle
from headwater.log.registry import list_deleted
from headwater.log.retention import free
from headwater.outages import Outage, store_may_recover
from headwater.stopping import StopSignal

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
        hw = self._hw
        chores: tuple[tuple[Callable[[], list[str]], Callable[[str], list[Any]]], ...] = (
            (hw.streams, hw.keep),
            (hw.queues, hw.keep_queues),
            (hw.ick_channels, hw.keep_channels),
            (lambda: list(hw.store.run(list_deleted())), self._free),
        )
        for names, keep in chores:
            for name in names():
                if self._stop.is_set():
                    return
                self._keep_one(keep, name)

    def _free(self, name: str) -> list[Any]:
        """Free a part of what deleted streams leave."""
        self._hw.store.run(free(StreamHandle(name, set())))
        return []

    def _keep_one(self, keep: Callable[[str], Any], name: str) -> None:
        try:
            for kept in keep(name):
                if getattr(kept, "fault", None) is not None:
                    self.faults += 1
                    log.error("stream %r could not be kept: %s", name, kept.fault)
        except UnreadableNode as error:
            # Damage of one object does not keep the others from being handled.
            self.faults += 1
            log.error("%r could not be kept: %s", name, error)


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
