"""Archive and log as one: the archive for what its manifest covers, the log for the rest.

The archiver makes a version of the manifest before the log evicts anything. So a reader that reads
the manifest first and the log after it, and reads both again when there is a gap between the two,
finds every offset in one of them; and a task whose part of the log was evicted meanwhile finds it
in a newer version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from headwater.log.reading import Extent
from headwater.spark.archives.manifest import Archive, File, Manifest
from headwater.spark.archives.place import archived_streams
from headwater.spark.archives.reading import offset_at

# About a second's work for a task.
TASK_ROWS = 1_000_000


class ArchivePart(NamedTuple):
    """Offsets start..stop-1 of an archive, and the files that hold them."""

    start: int
    stop: int
    files: tuple[File, ...]


def whole_extents(
    archives: Sequence[Archive], look: Callable[[], Sequence[Extent]]
) -> list[Extent]:
    """Return the extent of each stream, archive and log together.

    ``look`` asks the log. Of a stream that was deleted from the log, only its archive counts.
    Raises ArchiveMismatch when an archive is not the history of its stream.
    """
    before: list[Manifest | None] = []
    while True:
        manifests = [archive.load() for archive in archives]
        extents = look()
        found = [*zip(archives, manifests, extents, strict=True)]
        # Where they do not meet, the log may have evicted what was archived in between.
        if manifests == before or all(_meet(manifest, extent) for _, manifest, extent in found):
            return [_joined(*each) for each in found]
        before = manifests


def _meet(manifest: Manifest | None, extent: Extent) -> bool:
    return extent.first <= (manifest.last if manifest else 0) + 1


def _joined(archive: Archive, manifest: Manifest | None, extent: Extent) -> Extent:
    if manifest is None:
        return extent
    if not extent.created:
        return Extent(manifest.first, manifest.last, manifest.created, None)
    manifest.check_stream(archive.directory.shown, extent.created, extent.last)
    if manifest.first > manifest.last:
        return extent
    return extent._replace(first=min(manifest.first, extent.first))


def divide(manifest: Manifest, start: int, stop: int, least: int) -> tuple[list[ArchivePart], int]:
    """Cut what the archive has of start..stop-1 into parts; returns where the log goes on, too.

    At least so many parts, when there are as many offsets; none for offsets without a message.
    """
    end = min(stop, manifest.last + 1)
    if end <= start:
        return [], start
    rows = sum(file.rows for file in manifest.between(start, end - 1))
    count = min(max(-(-rows // TASK_ROWS), least), end - start)
    borders = [start + (end - start) * part // count for part in range(count + 1)]
    parts = [
        ArchivePart(low, high, tuple(manifest.between(low, high - 1)))
        for low, high in pairwise(borders)
    ]
    return [part for part in parts if part.files], end


def first_at(archive: Archive, time_ms: int, in_log: int) -> int:
    """Return the offset of the first message at or after a time, knowing the log's answer."""
    manifest = archive.load()
    found = None if manifest is None else offset_at(archive.directory, manifest, time_ms)
    return in_log if found is None else min(found, in_log)


def archived_partitions(place: str, topic: str) -> int:
    """Return how many partitions a topic had when it was archived; 0 when it never was."""
    counts = [
        Archive(place, name).require().partitions or 0
        for name in archived_streams(place)
        if name.rpartition("/")[0] == topic
    ]
    return max(counts, default=0)
