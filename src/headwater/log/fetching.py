"""Fetching: the bytes of a stream's messages, from the server into runs.

One reply holds at most 4 MiB, 64 MiB unpacked, and at least one node or entry. The node that was
read last is cached, so that reading it in small parts fetches and opens it once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import NamedTuple

from headwater.errors import HeadwaterError, MissingMessages
from headwater.log import counts, node
from headwater.log.handles import StreamHandle
from headwater.log.keys import index_key, nodes_key, stream_name
from headwater.log.limits import NODE_MESSAGES, reply_limits
from headwater.log.replies import IndexedNode, ReadReply, SentNode
from headwater.log.runs import Held, PackedRun, Run, missing, open_node, open_runs
from headwater.store.call import Argument, Call, Look, Operation

# How many ranges are fetched by one call.
RANGES_PER_CALL = 500


class FetchedPart(NamedTuple):
    """What one reply brought: the bounds of the stream then, the last offset covered, the runs."""

    first: int
    last: int
    covered: int
    runs: list[Run]
    created: bytes
    history: bytes

    def missing(self, at: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges of at..end, as far as the reply goes, that the store has lost."""
        return missing(self.runs, max(at, self.first), min(end, self.covered))


def note_missing(key: str, created: bytes, ranges: Iterable[tuple[int, int]]) -> Operation[None]:
    """Note what the store has lost, for the info of the stream; it is no fault if that fails."""
    edges = [edge for one in ranges for edge in one]
    with contextlib.suppress(HeadwaterError):
        yield Call("hw_stream_missing", key, (created, *edges), repeatable=True)


def refuse_missing(key: str, created: bytes, ranges: list[tuple[int, int]]) -> Operation[None]:
    """Raise MissingMessages for the first of these ranges; nothing happens without any."""
    if ranges:
        yield from note_missing(key, created, ranges)
        raise MissingMessages(stream_name(key), *ranges[0])


def fetch_part(
    stream: StreamHandle, at: int, end: int, max_bytes: int | None = None
) -> Operation[FetchedPart]:
    """Return what is in at..end, as far as one reply goes; it may cover a node beyond the end.

    With ``max_bytes``, the reply ends when its messages have so many, unpacked.
    """
    held = stream.held
    if at == held.last + 1 and end - at < NODE_MESSAGES:
        part = yield from _next_node(stream, held)
        if part is not None:
            return part
    args = (reply_limits(max_bytes), held.name, at, end)
    call = Call("hw_stream_read", stream.key, args, read_only=True, messages=counts.read)
    reply = ReadReply(*(yield call))
    runs, stream.held = open_runs(reply, held, stream.name)
    return FetchedPart(reply.first, reply.last, reply.covered, runs, reply.created, reply.history)


def _next_node(stream: StreamHandle, held: Held) -> Operation[FetchedPart | None]:
    """Look for the node after the one that was read last, where most readers continue.

    This takes the server half the time that the function takes. Only a node without holes counts:
    its messages never change, so it does not matter what happens between the three commands, as
    long as the last of them finds the same stream, and the node not evicted.
    """
    at = held.last + 1
    found = yield Look(
        stream.key,
        (
            ("ZRANGE", index_key(stream.key), at, "+inf", "BYSCORE", "LIMIT", 0, 1, "WITHSCORES"),
            ("HGET", nodes_key(stream.key), at),
            ("HMGET", stream.key, "first", "last", "created", "history"),
        ),
        messages=counts.looked_at,
    )
    if not found or found[2][2] != held.created:
        return None
    member, blob, (first, last, created, history) = found
    history = history or b""
    first, last = int(first), int(last)
    if last < at:
        return FetchedPart(first, last, last, [], created, history)
    if first > at or not member or not blob:
        return None
    facts, end = IndexedNode.of(member[0]), int(member[1])
    if facts.base != at or facts.messages != end - at + 1:
        return None
    if not node.belongs(blob, at, end, facts.time, facts.version):
        # It was replaced between the commands, or it is damaged: the function will tell.
        return None
    sent = SentNode(at, end, facts.time, facts.version, blob)
    batch = open_node(sent, stream.name)
    if batch.num_rows != facts.messages or "offset" in batch.schema.names:
        return None
    stream.held = Held(created, at, end, facts.version, batch)
    run = PackedRun(at, end, facts.time, batch)
    return FetchedPart(first, last, end, [run], created, history)


def _fetch_ranges(
    stream: StreamHandle, ranges: list[tuple[int, int]], whole: bool
) -> Operation[tuple[list[Run], list[tuple[int, int]]]]:
    """Return runs of ranges, which ascend, by one call, and what did not fit into its reply."""
    held = stream.held
    some = ranges[:RANGES_PER_CALL]
    edges = [edge for one in some for edge in one]
    args: tuple[Argument, ...] = (reply_limits(), held.name, *edges)
    call = Call("hw_stream_read", stream.key, args, read_only=True, messages=counts.read)
    reply = ReadReply(*(yield call))
    opened, stream.held = open_runs(reply, held, stream.name)
    if whole:
        spans = [(max(first, reply.first), min(last, reply.covered)) for first, last in some]
        lost = [gap for span in spans for gap in missing(opened, *span)]
        yield from refuse_missing(stream.key, reply.created, lost)
    runs = [
        run.cut(first, last)
        for first, last in some
        for run in opened
        if run.base <= last and run.last >= first
    ]
    if reply.covered >= min(some[-1][1], reply.last):
        return runs, ranges[len(some) :]
    # The rest of a range that was cut begins after what was covered.
    left = [one for one in some if one[1] > reply.covered]
    left[0] = max(left[0][0], reply.covered + 1), left[0][1]
    return runs, left + ranges[len(some) :]


def fetch(
    stream: StreamHandle, ranges: Iterable[tuple[int, int]], *, whole: bool = True
) -> Operation[list[Run]]:
    """Return the runs of the given ranges, and nothing beyond; several calls when they are large.

    A node that holds parts of several ranges becomes a run for each of them. Raises MissingMessages
    for offsets that the store has lost; unless ``whole``, no run has them, as if they were evicted.
    """
    runs: list[Run] = []
    rest = sorted(ranges)
    while len(rest) > 1:
        found, rest = yield from _fetch_ranges(stream, rest, whole)
        runs += found
    for first, last in rest:
        at = first
        while at <= last:
            part = yield from fetch_part(stream, at, last)
            if whole:
                lost = part.missing(at, last)
                yield from refuse_missing(stream.key, part.created, lost)
            runs += [run.cut(at, last) for run in part.runs if run.base <= last and run.last >= at]
            if part.covered < at or part.covered >= part.last:
                break
            at = part.covered + 1
    return runs
