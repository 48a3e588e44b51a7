"""Everything in a store at a glance: streams, topics, groups and their members.

Either client runs them: ``hw.store.run(all_streams())``. A thousand objects of a kind cost as many
round trips as one, on a cluster too. Nothing is changed, and no two objects are seen at the same
moment. A group, topic or channel that is removed meanwhile is left out; a stream or queue is shown
as an empty one. An object that is broken is left out, and logged.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from headwater.errors import BrokenObject, UnknownGroup
from headwater.ick.channels import LEASE_MS, ChannelHandle, list_channels
from headwater.ick.channels import stats as channel_stats
from headwater.ick.channels import stats_of_many as channel_stats_of_many
from headwater.ick.types import ChannelStats
from headwater.kernel.failures import LastFailure
from headwater.log import grouping, reading
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.inspecting import GroupRuler
from headwater.log.keys import list_streams, list_topics
from headwater.log.reading import partitions_of
from headwater.log.replies import record, rows
from headwater.log.types import GroupInfo, StreamInfo
from headwater.queue import inspecting
from headwater.queue.handles import QueueHandle, list_queues
from headwater.queue.replies import stats_of
from headwater.queue.types import QueueStats
from headwater.store.call import Call, Operation
from headwater.store.many import sound


def life_in_group(
    ruler: GroupRuler, failure: LastFailure | None, offset: int, now_ms: int
) -> tuple[str, str, int | None]:
    """Return the state of a message, in words, and when it was first delivered, if known."""
    why = f": {failure.cause}" if failure and failure.cause else ""
    first_ms = failure.delivered_ms if failure else None
    for dead in ruler.dead:
        if dead.first <= offset <= dead.last:
            otherwise = ": no error was reported" if failure else ": expired"
            text = f"dead after {dead.attempt} attempts{why or otherwise}"
            return "dead", text, first_ms
    if any(low <= offset <= high for low, high in ruler.gaps):
        return "missed", "missed: it was evicted before the group read it", None
    for one in ruler.pending:
        if one.first <= offset <= one.last:
            due = one.due_ms <= now_ms
            when = "now" if due else f"in {(one.due_ms - now_ms) / 1000:,.1f} s"
            text = f"pending, attempt {one.attempt}, redelivered {when}; which member holds it is "
            text += f"not kept{why and '; last error' + why}"
            return ("due" if due else f"pending-{min(one.attempt, 3)}"), text, first_ms
    if offset >= ruler.next:
        before = offset - ruler.next
        return "new", f"not delivered yet; {before:,} messages are before it", None
    return *_passed(ruler, offset), None


def _passed(ruler: GroupRuler, offset: int) -> tuple[str, str]:
    """Return the state of a message that is before the next one and is in no list."""
    if any(low <= offset <= high for low, high in ruler.jumps):
        text = "passed over by a seek; whether it was delivered before is not kept"
        return "passed", text
    if offset < ruler.start:
        return "before", f"never delivered: the group began at {ruler.start:,}"
    unknown = ruler.not_known
    if unknown is not None and offset < unknown.before:
        return "unknown", unknown.why
    return "done", "done; when is not kept"


# The handles of an overview never read, pop or reserve, so nobody sees their names.
_NOBODY = "overview"
# A member that is blocked reads every second, and one that works as soon as it can take more.
_LIVE_MS = 60_000
# So many groups are asked for in one call together with their streams.
_GROUPS_AT_ONCE = 200


class StreamGroup(NamedTuple):
    """Where a group of a stream stands."""

    stream: str
    group: GroupInfo


class StoreLook(NamedTuple):
    """Where streams, their groups and queues stand, and the server's time, 0 when not known."""

    now_ms: int
    streams: list[StreamInfo]
    groups: list[StreamGroup]
    queues: list[QueueStats]


class TopicStreams(NamedTuple):
    """The streams behind a topic, in the order of its partitions."""

    topic: str
    partitions: list[StreamInfo]


def live_members(*groups: GroupInfo, now_ms: int) -> set[str]:
    """Return the members of groups that have read in the last minute: who is gone is not one."""
    return {
        member
        for group in groups
        for member, seen_ms in group.members.items()
        if now_ms - seen_ms <= _LIVE_MS
    }


def all_streams() -> Operation[list[StreamInfo]]:
    """Return where every stream stands; the streams behind topics are among them."""
    return (yield from some_streams((yield from list_streams())))


def some_streams(names: Iterable[str]) -> Operation[list[StreamInfo]]:
    """Return where the named streams stand, in this order."""
    found = yield from sound(reading.info(StreamHandle(name, set())) for name in names)
    return [facts for facts in found if facts is not None]


def groups_of(streams: Iterable[StreamInfo]) -> Operation[list[StreamGroup]]:
    """Return where every group of some streams stands."""
    handles = [
        GroupHandle(StreamHandle(stream.name, set()), group, _NOBODY)
        for stream in streams
        for group in sorted(stream.groups)
    ]
    found = yield from sound(map(_group, handles))
    return [
        StreamGroup(handle.stream.name, facts)
        for handle, facts in zip(handles, found, strict=True)
        if facts is not None
    ]


def _group(handle: GroupHandle) -> Operation[GroupInfo | None]:
    try:
        return (yield from grouping.info(handle))
    except UnknownGroup:
        return None  # removed since the stream was asked


def look_together(streams: Sequence[str], queues: Sequence[str] = ()) -> Operation[StoreLook]:
    """Return where streams, all their groups and queues stand, by one call if they are few.

    Not for a cluster, where they are apart.
    """
    if not streams and not queues:
        return StoreLook(0, [], [], [])
    handles = [QueueHandle(name, set(), _NOBODY) for name in queues]
    keys = [StreamHandle(name, set()).key for name in streams] + [one.key for one in handles]
    args = (len(streams), _GROUPS_AT_ONCE)
    call = Call("hw_store_looks", keys[0], args, read_only=True, also=tuple(keys[1:]))
    try:
        reply = yield call
    except BrokenObject:
        # One of them is broken: each is asked for by itself, so that the others are seen.
        return (yield from look_apart(streams, queues))
    now_ms, found, stats = reply
    infos, seen = [], []
    for name, (facts, *groups) in zip(streams, found, strict=True):
        infos.append(record(StreamInfo, facts, name=name))
        for group, state in rows(groups, 2):
            info = record(GroupInfo, state, name=group.decode())
            seen.append(StreamGroup(name, info))
    known = {(row.stream, row.group.name) for row in seen}
    left = [
        replace(one, groups=rest)
        for one in infos
        if (rest := tuple(name for name in one.groups if (one.name, name) not in known))
    ]
    if left:
        seen = sorted(seen + (yield from groups_of(left)), key=lambda row: (row[0], row[1].name))
    pairs = zip(handles, map(stats_of, stats), strict=True)
    counted = yield from sound(inspecting.stats_out_of(*one) for one in pairs)
    return StoreLook(now_ms, infos, seen, [stats for stats in counted if stats is not None])


def look_apart(streams: Sequence[str], queues: Sequence[str] = ()) -> Operation[StoreLook]:
    """Return where streams, all their groups and queues stand, by a call for each."""
    infos = yield from some_streams(streams)
    groups = yield from groups_of(infos)
    return StoreLook(0, infos, groups, (yield from some_queues(queues)))


def all_topics() -> Operation[list[TopicStreams]]:
    """Return every topic and the streams behind it."""
    return (yield from some_topics((yield from list_topics())))


def some_topics(names: Sequence[str]) -> Operation[list[TopicStreams]]:
    """Return the named topics, those of them that are there, and the streams behind them."""
    counts = yield from sound(map(partitions_of, names))
    partitions = {
        name: [f"{name}/{place}" for place in range(count)]
        for name, count in zip(names, counts, strict=True)
        if count
    }
    found = yield from some_streams(itertools.chain.from_iterable(partitions.values()))
    facts = {stream.name: stream for stream in found}
    return [
        TopicStreams(name, [facts[stream] for stream in streams if stream in facts])
        for name, streams in partitions.items()
    ]


def all_queues() -> Operation[list[QueueStats]]:
    """Return how every queue stands."""
    return (yield from some_queues((yield from list_queues())))


def some_queues(names: Iterable[str]) -> Operation[list[QueueStats]]:
    """Return how some queues stand."""
    handles = [QueueHandle(name, set(), _NOBODY) for name in names]
    found = yield from sound(map(inspecting.stats, handles))
    return [stats for stats in found if stats is not None]


def all_channels(*, apart: bool = True) -> Operation[list[ChannelStats]]:
    """Return how every channel of dirty lists stands; see some_channels."""
    return (yield from some_channels((yield from list_channels()), apart=apart))


def some_channels(names: Iterable[str], *, apart: bool = True) -> Operation[list[ChannelStats]]:
    """Return how the named channels stand, those of them that are there.

    Unless they are ``apart``, as on a cluster, hundreds of them cost two calls.
    """
    handles = [ChannelHandle(name, None, _NOBODY, LEASE_MS, set()) for name in names]
    try:
        found = yield from channel_stats_of_many(handles, apart=apart)
    except BrokenObject:
        found = yield from sound(map(channel_stats, handles))
    return [facts for facts in found if facts is not None]
