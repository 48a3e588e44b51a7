"""Views of what Spark left in the store: archives and queries; they need no Spark."""

from __future__ import annotations

from headwater.spark.archives.table import Contents
from headwater.spark.queries.status import QueryStatus, ReadPosition
from headwater.views.record import Mirror, View, mirror

ReadPositionView = mirror("ReadPositionView", ReadPosition)
QueryView = mirror(
    "QueryView",
    QueryStatus,
    types={"reads": list[ReadPositionView], "state": str},  # type: ignore[valid-type]
)


class ArchiveView(Mirror, frozen=True, kw_only=True):
    """What an archive of a stream holds; ``gaps`` are offsets that were evicted before."""

    stream: str
    first: int
    last: int
    messages: int
    files: int
    bytes: int
    gaps: list[tuple[int, int]]
    version: int


def archive_view(contents: Contents) -> ArchiveView:
    """Return the view of an archive."""
    return ArchiveView.of(contents, messages=contents.rows, files=len(contents.files))


class QueryForgottenView(View, frozen=True, kw_only=True):
    """A query of which nothing is noted any more."""

    query: str
    name: str
