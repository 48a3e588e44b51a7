"""Views of what Spark left in the store: archives and queries."""

from __future__ import annotations

from headwater.spark.archives.manifest import Manifest
from headwater.spark.queries.status import QueryStatus, ReadPosition
from headwater.views.record import View, copied, mirror

# ── Archives ──────────────────────────────────────────────────────────────────────────────────────
# Views of archives of streams, as Parquet; they need no Spark.


class ArchiveView(View, frozen=True, kw_only=True):
    """What an archive of a stream holds; ``gaps`` are offsets that were evicted before."""

    stream: str
    first: int
    last: int
    messages: int
    files: int
    bytes: int
    gaps: list[tuple[int, int]]
    version: int

    @classmethod
    def of(cls, manifest: Manifest) -> ArchiveView:
        """Return the view of an archive."""
        own = {"messages": manifest.rows, "files": len(manifest.files)}
        return cls(**copied(cls, manifest, gaps=list(manifest.gaps), **own))


# ── Queries ───────────────────────────────────────────────────────────────────────────────────────


ReadPositionView = mirror("ReadPositionView", ReadPosition)


class QueryView(View, frozen=True, kw_only=True):
    """Where a query stands; ``lag`` counts messages, ``lag_ms`` is the age of the oldest.

    ``staged_bytes`` are those that it has staged for streams and topics, and not published yet.
    """

    query: str
    name: str
    state: str
    epoch: int
    checkpoint: str
    reads: list[ReadPositionView]  # type: ignore[valid-type]
    writes: list[str]
    lag: int
    lag_ms: int
    staged_bytes: int
    seen_ms: int

    @classmethod
    def of(cls, status: QueryStatus) -> QueryView:
        """Return the view of a query."""
        reads = [ReadPositionView.of(one) for one in status.reads]
        return cls(**copied(cls, status, reads=reads, writes=list(status.writes)))


class QueryForgottenView(View, frozen=True, kw_only=True):
    """A query of which nothing is noted any more."""

    query: str
    name: str
