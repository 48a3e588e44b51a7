"""The profile of a stream: how its messages are spread over offsets, times and bytes, by its nodes.

No message is read. The index of nodes is looked at in as many places as the picture has, so that a
stream of any length costs as much as a short one. Between two places an even distribution is
assumed; with no more nodes than places, every count is exact up to the nodes at its borders.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, NamedTuple

from headwater.inputs import check_int
from headwater.log.keys import stream_key
from headwater.log.replies import rows
from headwater.store.call import Call, Operation

MAX_SAMPLES: Final = 512


class SampledNode(NamedTuple):
    """A node: its offsets, messages and bytes; no message up to its last is newer than a time."""

    base: int
    last: int
    messages: int
    bytes: int
    newest_ms: int


class TimeBar(NamedTuple):
    """About how many messages a span of time has, and where they begin."""

    from_ms: int
    to_ms: int
    first: int
    messages: int


@dataclass(frozen=True, slots=True)
class StreamProfile:
    """How a part of a stream is stored in nodes.

    ``nodes`` are those of the part; ``sample`` has some of them at equal distances, or all.
    ``cold`` is the offset up to which nodes are cold, ``holes`` how many offsets of the stream have
    no message any more, ``bytes`` what all nodes take, ``tail_bytes`` what is not sealed. ``tail``
    has times of some messages that are not sealed, by their offsets.
    """

    first: int
    last: int
    sealed: int
    cold: int
    holes: int
    bytes: int
    tail_bytes: int
    time: int
    nodes: int
    cold_nodes: int
    all_nodes: int
    all_cold_nodes: int
    before: tuple[int, int] | None
    sample: list[SampledNode]
    tail: list[tuple[int, int]]

    @property
    def exact(self) -> bool:
        """Whether every node of the part is in the sample."""
        return len(self.sample) == self.nodes

    def points(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return offsets and times that rise together: up to the offset nothing is newer."""
        found = [] if self.before is None else [self.before]
        found += [(node.last, node.newest_ms) for node in self.sample]
        found += self.tail
        newest = list(accumulate((time_ms for _, time_ms in found), max))
        return [
            (min(offset, high), time_ms)
            for (offset, _), time_ms in zip(found, newest, strict=True)
            if offset >= low - 1
        ]

    def hot_and_cold_bytes(self) -> tuple[int, int]:
        """Return about how many bytes of the nodes are in hot and in cold ones."""
        hot = [node for node in self.sample if node.last > self.cold]
        hot_nodes = self.all_nodes - self.all_cold_nodes
        if not hot or not hot_nodes:
            return 0, self.bytes
        if hot_nodes == self.all_nodes:
            return self.bytes, 0
        share = round(sum(node.bytes for node in hot) / len(hot) * hot_nodes)
        return min(share, self.bytes), max(self.bytes - share, 0)


def stream_profile(
    stream: str, first: int, last: int, sample: int = 256
) -> Operation[StreamProfile]:
    """Return how first..last of a stream is stored in nodes; one call, which changes nothing."""
    check_int(sample, "sample", 1, MAX_SAMPLES)
    call = Call("hw_stream_profile", stream_key(stream), (first, last, sample), read_only=True)
    found: dict[str, Any] = {key.decode(): value for key, value in rows((yield call), 2)}
    before, nodes, tail = found.pop("before"), found.pop("sample"), found.pop("tail")
    return StreamProfile(
        **found,
        before=(before[0], before[1]) if before else None,
        sample=[SampledNode(*row) for row in rows(nodes, 5)],
        tail=list(rows(tail, 2)),
    )


def histogram(profile: StreamProfile, low: int, high: int, bars: int) -> list[TimeBar]:
    """Return about how many messages of low..high each of this many equal spans of time has."""
    low, high = max(low, profile.first), min(high, profile.last)
    points = profile.points(low, high)
    if low > high or not points:
        return []
    # The first node holds messages from some time up to its newest: without a node before it, the
    # next one says how long such a node lasts.
    times = [time_ms for _, time_ms in points]
    begin = times[0] if profile.before or len(times) < 2 else max(2 * times[0] - times[1], 0)
    span = max(times[-1] - begin, 1)
    if begin < times[0] or len(points) < 2:
        points.insert(0, (low - 1, begin))
    width = max(-(-span // bars), 1)
    edges = [begin + width * bar for bar in range(-(-span // width) + 1)]
    reached = [low - 1, *(_offset_by(points, edge) for edge in edges[1:-1]), high]
    reached = [max(min(offset, high), low - 1) for offset in reached]
    return [
        TimeBar(
            edges[bar], edges[bar + 1], reached[bar] + 1, max(reached[bar + 1] - reached[bar], 0)
        )
        for bar in range(len(edges) - 1)
    ]


def _offset_by(points: Sequence[tuple[int, int]], time_ms: int) -> int:
    """Return about which offset was reached by a time."""
    place = bisect_left(points, time_ms, key=lambda point: point[1])
    if place == 0:
        return points[0][0]
    if place == len(points):
        return points[-1][0]
    (low, since), (high, until) = points[place - 1], points[place]
    return low + round((high - low) * (time_ms - since) / max(until - since, 1))
