"""Topics over HTTP: create, write, read and tail all partitions as one, and their groups.

A place in a topic is an offset in each partition, `5.1.12`: a read returns the place to continue
at, and the id of an event is the place behind it. The partitions are also streams, `rides/0`, which
are read as such.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
from msgspec import Meta

from headwater.doors.catalogue import TOPIC, TOPIC_GROUP
from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES, bytes_of
from headwater.log.aio_topic import AsyncTopic
from headwater.log.keys import MAX_OFFSET, MAX_PARTITIONS
from headwater.log.node import MAP, SCHEMA
from headwater.log.topics import PARTITION, in_partition, with_partition
from headwater.log.types import Passage
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.derived import opened, routes_of
from headwater.serve.api.formats import NewMessages, arrow_pieces
from headwater.serve.api.groups import GroupReadBody, messages_taken
from headwater.serve.api.routes import ARROW, EVENTS, NDJSON, Answered, Route
from headwater.serve.api.streams import MOST_JSON, WriteQuery, given_entries, is_small
from headwater.serve.api.tails import ALIVE, HELLO, PIECE_BYTES, PIECE_MESSAGES, check_seen
from headwater.serve.fields import MAX_DIGITS, BlockMs, ListQuery, ReadCount, WithHeaders
from headwater.serve.http.messages import StreamedReply
from headwater.views.overview import groups_of, some_topics
from headwater.views.record import View
from headwater.views.streams import (
    GoneView,
    MessageView,
    OffsetsView,
    TopicCreatedView,
    TopicGroupView,
    TopicLinesWrittenView,
    TopicView,
)

# ── Topic reads ───────────────────────────────────────────────────────────────────────────────────
# Reads of a topic over HTTP: all partitions from a place on, as passages, lines or Arrow.


# So many partitions are read at once; each may have a message of the largest size.
_TOGETHER: Final = 8

_encode = msgspec.json.Encoder().encode


async def passages(
    topic: AsyncTopic[Any], at: list[int], count: int, max_bytes: int = LIST_BYTES
) -> list[Passage[Any]]:
    """Read on in every partition, this many messages of each; no more once they have so many bytes.

    Partitions that are not reached are as they were: the next read begins with another one.
    """
    first = sum(at) % len(at)
    order = (*range(first, len(at)), *range(first))
    found: dict[int, Passage[Any]] = {}
    room = max_bytes
    for begin in range(0, len(order), _TOGETHER):
        some = order[begin : begin + _TOGETHER]
        streams = [await topic.partition(place) for place in some]
        share = max(1, max_bytes // len(at))
        read = await asyncio.gather(
            *(
                stream.read_from(at[place], count, max_bytes=share)
                for place, stream in zip(some, streams, strict=True)
            )
        )
        for place, one in zip(some, read, strict=True):
            if room > 0:
                found[place] = one
                room -= bytes_of(one.messages)
        if room <= 0:
            break
    if len(found) < len(at):
        for place, facts in enumerate(await topic.info()):
            found.setdefault(place, Passage([], at[place], None, facts.last))
    return [found[place] for place in range(len(at))]


def nothing_new(found: list[Passage[Any]], at: list[int]) -> bool:
    """Return whether no partition has anything from its offset on."""
    return all(one.next == start for one, start in zip(found, at, strict=True))


def gone(place: int, gap: tuple[int, int]) -> GoneView:
    """Return the view of offsets of a partition that were evicted."""
    return GoneView(partition=place, gone=OffsetsView(first=gap[0], last=gap[1]))


async def lines(
    call: ApiCall, topic: AsyncTopic[Any], at: list[int], count: int
) -> AsyncGenerator[bytes, None]:
    """Yield up to ``count`` messages, a line each, and a line for each gap."""
    while count:
        page: list[bytes] = []
        async with call.served.tails.turns:
            share = max(1, min(count, PIECE_MESSAGES) // len(at))
            found = await passages(topic, at, share, PIECE_BYTES)
            if nothing_new(found, at):
                return
            for place, one in enumerate(found):
                if one.gap is not None and count:
                    page.append(_encode(gone(place, one.gap)) + b"\n")
                messages = in_partition(place, one.messages[:count])
                page += [_encode(MessageView.of(message)) + b"\n" for message in messages]
                count -= len(messages)
        yield b"".join(page)
        at = [one.next for one in found]


def arrow(
    topic: AsyncTopic[Any], at: list[int], count: int, *, headers: bool
) -> AsyncGenerator[bytes, None]:
    """Yield up to ``count`` messages as an Arrow IPC stream, with a column for the partition."""
    columns = [PARTITION, *SCHEMA, *([MAP] if headers else [])]
    return arrow_pieces(_in_turn(topic, at, headers), count, pa.schema(columns))


async def _in_turn(
    topic: AsyncTopic[Any], at: list[int], headers: bool
) -> AsyncIterator[pa.RecordBatch]:
    """Yield batches of the partitions in turn, until all of them end."""
    scans = {
        place: aiter((await topic.partition(place)).scan(start, headers=headers))
        for place, start in enumerate(at)
    }
    while scans:
        for place, scan in list(scans.items()):
            try:
                yield with_partition(await anext(scan), place)
            except StopAsyncIteration:
                del scans[place]


# ── Topics ────────────────────────────────────────────────────────────────────────────────────────


Place = Annotated[
    str,
    Meta(
        pattern=r"^(first|last|[0-9]{1,16}(\.[0-9]{1,16})*)$",
        description="first, last, or an offset in each partition, as 5.1.12.",
    ),
]


class TopicsView(View, frozen=True, kw_only=True):
    """Topics by name; ``next`` is the name to continue after, when there are more."""

    topics: list[TopicView]
    next: str | None


class TopicPassageView(View, frozen=True, kw_only=True):
    """What is from a place of a topic on; the next read begins at ``next``.

    ``gaps`` are offsets that were evicted before they could be read. ``last`` is where each
    partition ended.
    """

    topic: str
    messages: list[MessageView]
    next: str
    gaps: list[GoneView]
    last: list[int]


class TopicBody(msgspec.Struct, forbid_unknown_fields=True):
    """How many partitions a topic has, forever."""

    partitions: Annotated[int, Meta(ge=1, le=MAX_PARTITIONS)]


class TopicReadQuery(msgspec.Struct, forbid_unknown_fields=True):
    """What is read: from which place on, how much, and how long it is waited for."""

    from_: Place = msgspec.field(default="first", name="from")
    count: ReadCount = 100
    block_ms: BlockMs = 0
    headers: WithHeaders = False


class TopicTailQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Where a tail begins, unless the header Last-Event-ID says where it continues."""

    from_: Place = msgspec.field(default="last", name="from")


async def known_topic(call: ApiCall) -> AsyncTopic[Any]:
    """Return the topic of a request; raises UnknownTopic for one that is not there."""
    topic: AsyncTopic[Any] = await opened(call, TOPIC)
    return topic


async def list_topics(call: ApiCall) -> TopicsView:
    """List the topics that the token may read, by name."""
    names = [name for name in await call.hw.topics() if call.grant.allows(Scope.READ, name)]
    page, following = call.query.of(names)
    found = await call.hw.store.run(some_topics(page))
    return TopicsView(topics=[TopicView.of(*topic) for topic in found], next=following)


async def get_topic(call: ApiCall) -> TopicView:
    """Show the state of a topic: its sums, and each partition as a stream."""
    topic = await known_topic(call)
    return TopicView.of(call.name, await topic.info())


async def create_topic(call: ApiCall) -> TopicCreatedView:
    """Create a topic; one that exists is left as it is, and refused with another number."""
    has = await call.hw.topic(call.name, call.body.partitions).partitions()
    return TopicCreatedView(topic=call.name, partitions=has)


async def write_to_topic(call: ApiCall) -> TopicLinesWrittenView:
    """Append messages, each to the partition of its tag; returns their offsets by partition.

    The body is what a write to a stream takes. What goes to one partition is written whole or not
    at all; a repeat with the same producer and sequence completes what was cut short. Small
    requests of one moment are written together. The first write creates the topic, with 8
    partitions.
    """
    query = call.query
    given = given_entries(call)
    written: dict[int, range]
    if isinstance(given, list) and is_small(call, given):
        size = len(call.request.body)
        written = await call.served.topic_writes.write(call.name, given, size)
    else:
        topic = call.hw.topic(call.name)
        write: Any = topic.write_many if isinstance(given, list) else topic.append
        written = await write(
            given, backlog=query.backlog, producer=query.producer, sequence=query.sequence
        )
    return TopicLinesWrittenView(
        topic=call.name,
        written=sum(map(len, written.values())),
        partitions={
            place: OffsetsView(first=offsets[0], last=offsets[-1])
            for place, offsets in sorted(written.items())
            if offsets
        },
    )


async def read_topic(call: ApiCall) -> Answered:
    """Read messages of all partitions from a place on; evicted offsets are shown as gaps.

    Every partition has the same share of count, at least one message. With block_ms the request
    waits for a first message (long poll). As lines of JSON or as an Arrow IPC stream, up to count
    messages are sent as fast as the client takes them, some of each partition in turn.
    """
    query = call.query
    topic = await known_topic(call)
    at = await _offsets(call, topic)
    if query.block_ms and nothing_new(await passages(topic, at, 1), at):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(query.block_ms / 1000):
                await call.served.tails.news(_streams(call.name, at))
    if call.accepted == ARROW:
        pieces = arrow(topic, at, query.count, headers=query.headers)
        return StreamedReply(200, pieces, ARROW)
    if call.accepted == NDJSON:
        return StreamedReply(200, lines(call, topic, at, query.count), NDJSON)
    found = await passages(topic, at, max(1, min(query.count, MOST_JSON) // len(at)))
    return TopicPassageView(
        topic=call.name,
        messages=[
            MessageView.of(message)
            for place, one in enumerate(found)
            for message in in_partition(place, one.messages)
        ],
        next=_spelled(one.next for one in found),
        gaps=[
            gone(place, one.gap)
            for place, one in enumerate(found)
            if one.gap is not None and query.from_ != "first"
        ],
        last=[one.last for one in found],
    )


async def tail_topic(call: ApiCall) -> Answered:
    """Send messages of all partitions as they are written, as server-sent events.

    The id of an event is the place behind it in all partitions; a client that reconnects with
    Last-Event-ID continues there and misses nothing. Offsets that were evicted before a slow client
    came to them are named by an event `skipped`.
    """
    topic = await known_topic(call)
    seen = call.header(b"last-event-id")
    at = await (_named(call, topic, seen, _NO_ID) if seen else _offsets(call, topic))
    if seen:
        for offset, facts in zip(at, await topic.info(), strict=True):
            check_seen(facts.name, offset - 1, facts.last)
    pieces = _events(call, topic, at, lambda: call.served.tokens.still(call.grant))
    return StreamedReply(200, pieces, EVENTS, b"Cache-Control: no-store\r\n", endless=True)


async def _events(
    call: ApiCall, topic: AsyncTopic[Any], at: list[int], allowed: Callable[[], bool]
) -> AsyncGenerator[bytes, None]:
    share = max(1, PIECE_MESSAGES // len(at))
    yield HELLO
    waited = False
    while allowed():
        async with call.served.tails.turns:
            found = await passages(topic, at, share, PIECE_BYTES)
            events = b"".join(_as_events(found, at))
        if not allowed():
            return
        if not nothing_new(found, at):
            yield events
            at = [one.next for one in found]
            waited = False
        elif waited:
            yield ALIVE
            waited = False
        else:
            await call.served.tails.news(_streams(call.name, at), allowed)
            waited = True


def _as_events(found: list[Passage[Any]], at: list[int]) -> list[bytes]:
    """Return passages as events, partition by partition; their ids are the places behind them."""
    place_behind = list(at)
    events = []
    for place, one in enumerate(found):
        if one.gap is not None:
            place_behind[place] = one.gap[1] + 1
            events.append(_event(place_behind, gone(place, one.gap), b"event: skipped\n"))
        for message in in_partition(place, one.messages):
            place_behind[place] = message.offset + 1
            events.append(_event(place_behind, MessageView.of(message)))
        place_behind[place] = one.next
    return events


def _event(place: list[int], view: View, kind: bytes = b"") -> bytes:
    return b"%bid: %b\ndata: %b\n\n" % (
        kind,
        _spelled(place).encode(),
        msgspec.json.encode(view),
    )


async def _offsets(call: ApiCall, topic: AsyncTopic[Any]) -> list[int]:
    """Return the offset in each partition from which to begin; raises InvalidInput."""
    place: str = call.query.from_
    if place in ("first", "last"):
        facts = await topic.info()
        return [max(one.first, 1) if place == "first" else one.last + 1 for one in facts]
    return await _named(call, topic, place, _NO_PLACE)


async def _named(call: ApiCall, topic: AsyncTopic[Any], place: str, refusal: str) -> list[int]:
    """Return the offset in each partition that a text names; raises InvalidInput."""
    partitions = await topic.partitions()
    parts = place.split(".")
    if not all(part.isascii() and part.isdecimal() and len(part) <= MAX_DIGITS for part in parts):
        raise InvalidInput(f"{place[:100]!r} {refusal}")
    offsets = [int(part) for part in parts]
    if len(offsets) != partitions or not all(1 <= one <= MAX_OFFSET for one in offsets):
        raise InvalidInput(
            f"topic {call.name!r} has {partitions} partitions; give an offset from 1 on for each"
        )
    return offsets


def _spelled(offsets: Any) -> str:
    return ".".join(map(str, offsets))


def _streams(topic: str, at: list[int]) -> dict[str, int]:
    return {f"{topic}/{place}": start for place, start in enumerate(at)}


_NO_PLACE: Final = "is not a place in a topic; give first, last, or offsets such as 5.1.12"
_NO_ID: Final = (
    "is no id of an event here: that is an offset for each partition, such as 5.1.12; leave the "
    "header Last-Event-ID out to begin anew"
)
_ONE: Final = "/v1/topics/{topic}"
TOPIC_ROUTES: Final = (
    Route("GET", "/v1/topics", list_topics, Scope.READ, query=ListQuery, answer=TopicsView),
    Route("GET", _ONE, get_topic, Scope.READ, answer=TopicView),
    Route("PUT", _ONE, create_topic, Scope.WRITE, body=TopicBody, answer=TopicCreatedView),
    Route(
        "POST",
        f"{_ONE}/messages",
        write_to_topic,
        Scope.WRITE,
        query=WriteQuery,
        body=NewMessages,
        bodies=(NDJSON, ARROW),
        answer=TopicLinesWrittenView,
        status=201,
    ),
    Route(
        "GET",
        f"{_ONE}/messages",
        read_topic,
        Scope.READ,
        query=TopicReadQuery,
        answer=TopicPassageView,
        answers=(NDJSON, ARROW),
    ),
    Route("GET", f"{_ONE}/tail", tail_topic, Scope.READ, query=TopicTailQuery, answers=(EVENTS,)),
    *routes_of(TOPIC, get_topic),
)


# ── Topic groups ──────────────────────────────────────────────────────────────────────────────────
# Groups over topics over HTTP: read from all partitions, settle, seek.
#
# Offsets count within their partition: what is settled is named by partition, `{"0": [5, 6]}`.


class TopicGroupsView(View, frozen=True, kw_only=True):
    """Groups over a topic, each in every partition."""

    groups: list[TopicGroupView]  # type: ignore[valid-type]  # mirror makes it at run time


class TopicGroupReadView(View, frozen=True, kw_only=True):
    """Messages of a topic that were handed out to a member of a group."""

    topic: str
    group: str
    messages: list[MessageView]


async def _group(call: ApiCall) -> Any:
    return (await known_topic(call)).group(call.names[1])


async def list_topic_groups(call: ApiCall) -> TopicGroupsView:
    """List the groups of a topic, and their state in each partition."""
    streams = await (await known_topic(call)).info()
    places = {facts.name: place for place, facts in enumerate(streams)}
    found = await call.hw.store.run(groups_of(streams))
    found.sort(key=lambda one: (one.group.name, places[one.stream]))
    views = [
        TopicGroupView.of(one.group, topic=call.name, partition=places[one.stream]) for one in found
    ]
    return TopicGroupsView(groups=views)


async def get_topic_group(call: ApiCall) -> TopicGroupsView:
    """Show the state of a group of a topic in each partition."""
    facts = await (await _group(call)).info()
    return TopicGroupsView(
        groups=[
            TopicGroupView.of(one, topic=call.name, partition=place)
            for place, one in enumerate(facts)
        ]
    )


async def read_topic_group(call: ApiCall) -> TopicGroupReadView:
    """Take messages of any partition that no other member has; the first read creates the group.

    Each is pending until it is acknowledged, or redelivered ack_ms after it was handed out. With
    block_ms the request waits for a first message. No more are taken once they have 4 MiB.
    """
    topic, group = call.names
    messages = await messages_taken(call, await known_topic(call))
    return TopicGroupReadView(topic=topic, group=group, messages=messages)


_ALL: Final = "/v1/topics/{topic}/groups"
_GROUP: Final = f"{_ALL}/{{group}}"


TOPIC_GROUP_ROUTES: Final = (
    Route("GET", _ALL, list_topic_groups, Scope.READ, answer=TopicGroupsView),
    Route("GET", _GROUP, get_topic_group, Scope.READ, answer=TopicGroupsView),
    Route(
        "POST",
        f"{_GROUP}/read",
        read_topic_group,
        Scope.WRITE,
        body=GroupReadBody,
        answer=TopicGroupReadView,
    ),
    *routes_of(TOPIC_GROUP, get_topic_group),
)
