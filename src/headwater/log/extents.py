"""Where streams begin and end, and where they may be cut: for whoever plans to read many at once.

These are calls and the reading of their replies, not operations, so that a planner can send those
of all partitions of a topic together (``Store.ask_all``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headwater.log.keys import stream_key, topic_key
from headwater.store.call import Call, Operation


class Extent(NamedTuple):
    """The offsets that a stream holds, and ``created``, which no later stream of its name has.

    A stream that was never written holds 1..0 and was created 0.
    """

    first: int
    last: int
    created: int


def extent_call(stream: str) -> Call:
    """Give the call that tells the extent of a stream; ``extent_of`` reads its reply."""
    return Call("hw_stream_read", stream_key(stream), (0, ""), read_only=True)


def extent_of(reply: Any) -> Extent:
    """Read the reply to ``extent_call``."""
    first, last, _, created, *_ = reply
    return Extent(first, last, int(created))


def borders_call(stream: str, start: int, stop: int, nodes: int, least: int) -> Call:
    """Give the call that tells where start..stop-1 may be cut into parts, ending where nodes do.

    A part has up to ``nodes`` nodes; there are ``least`` parts or a multiple of it, so that as many
    readers as that come to their ends together.
    """
    args = (start, stop - 1, nodes, least)
    return Call("hw_stream_borders", stream_key(stream), args, read_only=True)


def borders_of(reply: Any) -> tuple[Extent, list[int]]:
    """Read the reply to ``borders_call``: the extent, and the last offset of each part but one."""
    first, last, created, *borders = reply
    return Extent(first, last, int(created)), borders


def partitions_of(topic: str) -> Operation[int]:
    """Say how many partitions a topic has, without making it; 0 when there is none."""
    found: int = yield Call("hw_topic_partitions", topic_key(topic), read_only=True)
    return found
