"""Extents: where streams begin and end, and where they may be cut, for planners of large reads.

These are calls and the reading of their replies, not operations, so that a planner can send those
of all partitions of a topic together (``Store.ask_all``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headwater.log.keys import stream_key, topic_key
from headwater.log.replies import BordersReply, ReadReply
from headwater.store.call import Call, Operation


class Extent(NamedTuple):
    """The offsets that a stream holds, and ``created``, which no later stream of its name has.

    A stream that was never written holds 1..0 and was created 0.
    """

    first: int
    last: int
    created: int


def extent_call(stream: str) -> Call:
    """Return the call that asks for the extent of a stream; ``extent_of`` reads its reply."""
    return Call("hw_stream_read", stream_key(stream), (0, ""), read_only=True)


def extent_of(reply: Any) -> Extent:
    """Read the reply to ``extent_call``."""
    read = ReadReply(*reply)
    return Extent(read.first, read.last, int(read.created))


def borders_call(stream: str, start: int, stop: int, nodes: int, least: int) -> Call:
    """Return the call that asks where start..stop-1 may be cut into parts, ending where nodes do.

    A part has up to ``nodes`` nodes; there are ``least`` parts or a multiple of it, so that as many
    readers as that finish together.
    """
    args = (start, stop - 1, nodes, least)
    return Call("hw_stream_borders", stream_key(stream), args, read_only=True)


def borders_of(reply: Any) -> tuple[Extent, list[int]]:
    """Read the reply to ``borders_call``: the extent, and the last offset of each part but one."""
    cut = BordersReply.of(reply)
    return Extent(cut.first, cut.last, int(cut.created)), cut.borders


def partitions_of(topic: str) -> Operation[int]:
    """Return how many partitions a topic has, without making it; 0 when there is no such topic."""
    found: int = yield Call("hw_topic_partitions", topic_key(topic), read_only=True)
    return found
