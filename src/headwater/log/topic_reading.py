"""Reading by a group over a topic: from all partitions, each time beginning with another one."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from headwater.errors import HeadwaterError, StoreError
from headwater.inputs import Duration
from headwater.log import grouping, ordering, reading
from headwater.log.extents import extent
from headwater.log.handles import StreamHandle
from headwater.log.keys import tail_key
from headwater.log.limits import check_block, check_count
from headwater.log.read_terms import Terms
from headwater.log.topic_groups import TopicGroupHandle
from headwater.log.topics import in_partition
from headwater.log.types import TopicMessage, TopicWithInfo
from headwater.sizes import bytes_of
from headwater.store.call import Clock, Operation, Wait
from headwater.store.many import together

# On a cluster a blocked reader looks at one partition at a time, for this long.
TURN_MS = 20


class _TopicRead(NamedTuple):
    """What was taken from partitions, where each ended, and when the next message is due."""

    messages: list[TopicMessage]
    news: list[tuple[StreamHandle, int]]
    due_ms: int
    bounds: dict[int, tuple[int, int]]


def read(
    group: TopicGroupHandle,
    count: int,
    block_ms: Duration | float | None,
    retry_ms: Duration | None,
    expire_ms: Duration | None,
    max_bytes: int | None = None,
) -> Operation[list[TopicMessage]]:
    """Take up to ``count`` messages from all partitions, beginning with another one each time."""
    terms = Terms.of(retry_ms, expire_ms, max_bytes)
    found = yield from _read_until(group, count, block_ms, terms, with_info=False)
    return found.messages


def read_with_info(
    group: TopicGroupHandle,
    count: int,
    block_ms: Duration | float | None,
    retry_ms: Duration | None,
    expire_ms: Duration | None,
    max_bytes: int | None = None,
) -> Operation[TopicWithInfo[TopicMessage]]:
    """Do as read does, and return the bounds of each partition, as its reply gave them.

    Partitions that the read did not need are asked for their bounds at the end.
    """
    terms = Terms.of(retry_ms, expire_ms, max_bytes)
    found = yield from _read_until(group, count, block_ms, terms, with_info=True)
    members, bounds = (yield from group.open()), found.bounds
    left = [place for place in range(len(members)) if place not in bounds]
    # What this read took must reach its caller.
    with contextlib.suppress(StoreError):
        extents = yield from together([extent(members[place].stream.name) for place in left])
        bounds |= {place: (one.first, one.last) for place, one in zip(left, extents, strict=True)}
    return TopicWithInfo(
        found.messages,
        {place: bounds[place][0] for place in sorted(bounds)},
        {place: bounds[place][1] for place in sorted(bounds)},
    )


def _read_until(
    group: TopicGroupHandle,
    count: int,
    block_ms: Duration | float | None,
    terms: Terms,
    *,
    with_info: bool,
) -> Operation[_TopicRead]:
    check_count(count)
    ordering.check_terms(group.options, count, terms.retry_ms)
    patience = check_block(block_ms) if count else 0
    deadline = (yield Clock()) + patience
    woken: list[Any] | None = None
    while True:
        found = yield from _read_partitions(group, count, terms, with_info)
        left, news = deadline - (yield Clock()), found.news
        if found.messages or left <= 0:
            return found
        if woken:
            yield from _complete(news, woken)
        wait_ms = min(left, grouping.WAIT_SLICE_MS, terms.retry_ms or left)
        if found.due_ms >= 0:
            wait_ms = min(wait_ms, found.due_ms)
        if not group.one_server:
            # Streams in different slots cannot be waited for together: take turns.
            news, wait_ms = news[:1], min(wait_ms, TURN_MS)
        woken = yield _wait_for(news, max(1, int(wait_ms)))


def _complete(news: list[tuple[StreamHandle, int]], woken: list[Any]) -> Operation[None]:
    """Complete writes that stopped half-way: they wake readers that then find nothing."""
    ends = {tail_key(stream.key): (stream, last) for stream, last in news}
    for tail, entries in woken:
        stream, last = ends.get(tail.decode(), (None, 0))
        if stream is not None and int(entries[0][0][2:]) > last:
            yield reading.complete(stream.key)


def _read_partitions(
    group: TopicGroupHandle, count: int, terms: Terms, with_info: bool
) -> Operation[_TopicRead]:
    members = yield from group.open()
    group.turn = (group.turn + 1) % len(members)
    messages: list[TopicMessage] = []
    news: list[tuple[StreamHandle, int]] = []
    bounds: dict[int, tuple[int, int]] = {}
    due_ms = -1
    room = terms.max_bytes
    for place in (*range(group.turn, len(members)), *range(group.turn)):
        left = count - len(messages) if room > 0 else 0
        try:
            taken = yield from grouping.read_now(
                members[place], left, terms._replace(max_bytes=room), with_info=with_info
            )
        except HeadwaterError as error:
            if messages:
                # What this read took in other partitions must reach its caller.
                return _TopicRead(messages, news, -1, bounds)
            error.partition = place
            raise
        messages += in_partition(place, taken.messages)
        room -= bytes_of(taken.messages)
        news.append((members[place].stream, taken.last))
        if with_info:
            bounds[place] = taken.first, taken.last
        if taken.due_ms >= 0:
            due_ms = taken.due_ms if due_ms < 0 else min(due_ms, taken.due_ms)
        if (len(messages) >= count or room <= 0) and group.begun:
            break
    # The first read has reached every partition: from now on the group exists in all of them.
    group.begun = True
    return _TopicRead(messages, news, due_ms, bounds)


def _wait_for(news: list[tuple[StreamHandle, int]], ms: int) -> Wait:
    keys = [tail_key(stream.key) for stream, _ in news]
    ids = [f"0-{last}" for _, last in news]
    return Wait(keys[0], ("XREAD", "COUNT", 1, "BLOCK", ms, "STREAMS", *keys, *ids), ms)


def await_news(ends: list[tuple[StreamHandle, int]], ms: int) -> Operation[list[str]]:
    """Wait until a stream goes beyond its end; returns the names of those that do."""
    tails = {tail.decode() for tail, _ in (yield _wait_for(ends, ms)) or ()}
    return [stream.name for stream, _ in ends if tail_key(stream.key) in tails]
