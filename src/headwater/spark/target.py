"""What a query reads: a stream, or a topic with all its partitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headwater.client import Headwater
from headwater.errors import InvalidInput, UnknownStream, UnknownTopic
from headwater.inputs import check_name
from headwater.log.extents import Extent, extent_call, extent_of, partitions_of
from headwater.spark.connections import absolute_url, client
from headwater.spark.options import Options


@dataclass(frozen=True, slots=True)
class Target:
    """A stream or topic of a store; goes to tasks, so it holds names only."""

    url: str
    name: str
    is_topic: bool

    @property
    def hw(self) -> Headwater:
        """This process's client of the store."""
        return client(self.url)

    def streams(self) -> dict[int, str]:
        """Give the stream of each partition; a topic that was never made has none."""
        if not self.is_topic:
            return {0: self.name}
        partitions = self.hw.store.run(partitions_of(self.name))
        return {place: f"{self.name}/{place}" for place in range(partitions)}

    def unknown(self) -> UnknownStream | UnknownTopic:
        """Give the error for a target that is not there."""
        return UnknownTopic(self.name) if self.is_topic else UnknownStream(self.name)

    def extents(self, streams: Iterable[str]) -> list[Extent]:
        """Say where streams stand now; one round trip to each server."""
        replies = self.hw.store.ask_all([extent_call(stream) for stream in streams])
        return [extent_of(reply) for reply in replies]


def target_of(options: Options) -> Target:
    """Find out what the options ``url``, ``stream`` and ``topic`` name. Raises InvalidInput."""
    stream, topic = options.text("stream"), options.text("topic")
    if stream is not None and topic is not None:
        raise InvalidInput("options 'stream' and 'topic' are both given; give one of them")
    name = stream or topic
    if name is None:
        raise InvalidInput("nothing to read is named; add .option('stream', ...) or 'topic'")
    check_name(name, "topic" if topic else "stream")
    return Target(absolute_url(options.text("url")), name, topic is not None)
