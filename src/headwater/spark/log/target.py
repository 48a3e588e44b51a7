"""Which stream is meant, or which topic, with all its partitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwater.client import Headwater
from headwater.errors import InvalidInput, UnknownStream, UnknownTopic
from headwater.kernel.inputs import check_name
from headwater.log.reading import Extent, extent, partitions_of
from headwater.spark.engine.connections import absolute_url, client
from headwater.spark.engine.options import SourceOptions
from headwater.store.many import together

# Most logs are read without an archive, and its modules are imported with the first use of one.
if TYPE_CHECKING:
    from headwater.spark.archives.manifest import Manifest


@dataclass(frozen=True, slots=True)
class StreamOrTopic:
    """A stream or topic of a store; goes to tasks, so it holds names only."""

    url: str = field(repr=False)
    name: str
    is_topic: bool
    # The place of an archive, which is read as the beginning of the log.
    archive: str | None = field(default=None, repr=False)

    @property
    def hw(self) -> Headwater:
        """This process's client of the store."""
        return client(self.url)

    def streams(self) -> dict[int, str]:
        """Return the stream of each partition; a topic that was never made has none."""
        if not self.is_topic:
            return {0: self.name}
        partitions = self.hw.store.run(partitions_of(self.name))
        if not partitions and self.archive is not None:
            from headwater.spark.archives.history import archived_partitions

            partitions = archived_partitions(self.archive, self.name)
        return {place: f"{self.name}/{place}" for place in range(partitions)}

    def require(self) -> None:
        """Raise UnknownStream or UnknownTopic unless it is there, be it without a message."""
        names = list(self.streams().values())
        if self.is_topic:
            if not names:
                raise self.unknown()
        elif not any(one.created for one in self.extents(names)):
            facts = self.hw.stream(self.name).info()
            if not (facts.exists or facts.groups or facts.readers):
                raise self.unknown()

    def unknown(self) -> UnknownStream | UnknownTopic:
        """Return the error for a target that is not there."""
        return UnknownTopic(self.name) if self.is_topic else UnknownStream(self.name)

    def extents(self, streams: Iterable[str]) -> list[Extent]:
        """Return the extents of streams with their archives; one round trip to each server."""
        names = list(streams)

        def look() -> list[Extent]:
            return self.hw.store.run(together(map(extent, names)))

        if self.archive is None:
            return look()
        from headwater.spark.archives.history import whole_extents
        from headwater.spark.archives.manifest import Archive

        return whole_extents([Archive(self.archive, name) for name in names], look)

    def manifest(self, stream: str) -> Manifest | None:
        """Return what is archived of a stream; None when there is nothing."""
        if self.archive is None:
            return None
        from headwater.spark.archives.manifest import Archive

        return Archive(self.archive, stream).load()

    def offset_at(self, stream: str, time_ms: int) -> int:
        """Return the offset of the first message at or after a time, archived or not."""
        in_log = self.hw.stream(stream).offset_at(time_ms)
        if self.archive is None:
            return in_log
        from headwater.spark.archives.history import first_at
        from headwater.spark.archives.manifest import Archive

        return first_at(Archive(self.archive, stream), time_ms, in_log)


def target_of(options: SourceOptions) -> StreamOrTopic:
    """Find out what the options ``url``, ``stream`` and ``topic`` name. Raises InvalidInput."""
    stream, topic = options.text("stream"), options.text("topic")
    if stream is not None and topic is not None:
        raise InvalidInput("options 'stream' and 'topic' are both given; give one of them")
    name = stream or topic
    if name is None:
        raise InvalidInput("nothing to read is named; add .option('stream', ...) or 'topic'")
    check_name(name, "topic" if topic else "stream")
    return StreamOrTopic(
        absolute_url(options.text("url")), name, topic is not None, _place(options.text("archive"))
    )


def _place(archive: str | None) -> str | None:
    if archive is None:
        return None
    from headwater.spark.archives.place import absolute_place

    return absolute_place(archive)


def named_target(
    url: str | None, stream: str | None, topic: str | None, purpose: str
) -> StreamOrTopic:
    """Return the stream or topic that a job was given; raises InvalidInput unless it is one."""
    if (stream is None) == (topic is None):
        raise InvalidInput(f"name either a stream or a topic {purpose}")
    name = check_name(stream or topic or "", "stream" if stream else "topic")
    return StreamOrTopic(absolute_url(url), name, topic is not None)
