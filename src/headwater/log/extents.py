"""Extents: where streams begin and end, and where they may be cut, for planners of large reads.

Each is an operation of one call; ``together`` runs those of all partitions of a topic in one round
trip.
"""

from __future__ import annotations

from typing import NamedTuple

from headwater.log.keys import stream_key, topic_key
from headwater.log.replies import BordersReply, ReadReply
from headwater.store.call import Call, Operation


class Extent(NamedTuple):
    """The offsets that a stream holds, and ``created``, which no later stream of its name has.

    A stream that was never written holds 1..0 and was created 0. ``history`` shows what it has lost
    (see log/history.py); None when it is not known.
    """

    first: int
    last: int
    created: int
    history: bytes | None = b""


def extent(stream: str) -> Operation[Extent]:
    """Return the extent of a stream."""
    reply = yield Call("hw_stream_read", stream_key(stream), (0, ""), read_only=True)
    read = ReadReply(*reply)
    return Extent(read.first, read.last, int(read.created), read.history)


def borders(stream: str, start: int, stop: int, nodes: int, least: int) -> Operation[list[int]]:
    """Return the offsets after which start..stop-1 may be cut into parts: where nodes end.

    A part has up to ``nodes`` nodes; there are ``least`` parts or a multiple of it, so that as many
    readers as that finish together.
    """
    args = (start, stop - 1, nodes, least)
    reply = yield Call("hw_stream_borders", stream_key(stream), args, read_only=True)
    return BordersReply.of(reply).borders


def partitions_of(topic: str) -> Operation[int]:
    """Return how many partitions a topic has, without creating it; 0 for no such topic."""
    found: int = yield Call("hw_topic_partitions", topic_key(topic), read_only=True)
    return found
