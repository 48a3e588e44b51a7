"""The streamer of the outbox as a part of an application: one leads, others stand by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from headwater.app.parts import Fault, Need, Part, PartCounts
from headwater.app.resources import Resources
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.outbox.streamer import Streamer


class StreamerPart(Part):
    """Brings what transactions staged to the log."""

    kind: ClassVar[str] = "outbox"
    needs: ClassVar[frozenset[Need]] = frozenset({"store", "db"})

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, "outbox")
        self._options = dict(options)

    def check(self, resources: Resources) -> Iterator[Fault]:
        """Check the options, and that the outbox has its tables."""
        from headwater.outbox.outbox import Outbox

        try:
            self.open(resources).close()
            Outbox(resources.engine).status()
        except HeadwaterError as error:
            yield Fault(self.name, str(error))

    def open(self, resources: Resources) -> Streamer:
        """Return the streamer."""
        from headwater.outbox.outbox import Outbox
        from headwater.outbox.streamer import Streamer

        return Streamer(Outbox(resources.engine), resources.hw, **self._options)

    def counts(self, work: Any) -> PartCounts:
        """Return how many rows were streamed."""
        return PartCounts(work.progress.rows)

    def lag(self, resources: Resources) -> int | None:
        """Return how many rows wait."""
        from headwater.outbox.outbox import Outbox

        return Outbox(resources.engine).status().backlog
