"""Views of the streaming queries of Spark that read or write a store; they need no Spark."""

from __future__ import annotations

from headwater.spark.queries.status import QueryStatus, ReadPosition
from headwater.views.record import View, copied, mirror

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
