"""Views of archives of streams, as Parquet; they need no Spark."""

from __future__ import annotations

from headwater.spark.archives.manifest import Manifest
from headwater.views.record import View, copied


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
