"""Streams and topics over HTTP: write, read, tail and manage them, and readers of streams.

The partitions of a topic are also streams, `rides/0`, which are read as such.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Annotated, Any, Final, TypeVar

import msgspec
import pyarrow as pa
from msgspec import UNSET, Meta

from headwater.doors.catalogue import STREAM, TOPIC
from headwater.errors import UnknownReader, UnknownStream
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES
from headwater.kernel.inputs import check_name
from headwater.log.aio_stream import AsyncLog, Range
from headwater.log.keys import MAX_BATCH_MESSAGES, MAX_OFFSET, MAX_PARTITIONS
from headwater.log.types import Passage, StreamInfo
from headwater.serve.api import formats
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.derived import opened, routes_of
from headwater.serve.api.formats import NewMessage, NewMessages
from headwater.serve.api.reading import (
    PIECE_BYTES,
    PIECE_MESSAGES,
    Source,
    gone,
    nothing_new,
    spelled,
    topic_source,
)
from headwater.serve.api.routes import ARROW, EVENTS, JSON, NDJSON, Answered, Route
from headwater.serve.fields import BlockMs, Count, ListQuery, ReadCount, Start, WithHeaders
from headwater.serve.http.messages import StreamedReply
from headwater.views.overview import some_streams, some_topics
from headwater.views.record import View
from headwater.views.streams import (
    GoneView,
    LinesWrittenView,
    MessageView,
    OffsetsView,
    ReaderForgottenView,
    ReaderView,
    SearchedView,
    StreamView,
    TopicCreatedView,
    TopicLinesWrittenView,
    TopicView,
)

V = TypeVar("V")

# A body of up to this size is written together with those of other requests.
_BATCHED_BYTES: Final = 16 * 1024
# A page of JSON is made as a whole.
MOST_JSON: Final = 10_000
# How long a search may take at most; other requests of its process have turns in between.
MAX_SEARCH_MS: Final = 10_000


TopicPosition = Annotated[
    str,
    Meta(
        pattern=r"^(first|last|[0-9]{1,16}(\.[0-9]{1,16})*)$",
        description="first, last, or an offset in each partition, as 5.1.12.",
    ),
]


class StreamsView(View, frozen=True, kw_only=True):
    """Streams by name; ``next`` is the name to continue after, when there are more."""

    streams: list[StreamView]  # type: ignore[valid-type]  # mirror makes it at run time
    next: str | None


class PassageView(View, frozen=True, kw_only=True):
    """What is from an offset on; the next read begins at ``next``.

    ``gap`` are offsets that were evicted before they could be read. ``last`` is where the stream
    ended.
    """

    stream: str
    messages: list[MessageView]
    next: int
    gap: OffsetsView | None
    last: int


class TopicsView(View, frozen=True, kw_only=True):
    """Topics by name; ``next`` is the name to continue after, when there are more."""

    topics: list[TopicView]
    next: str | None


class TopicPassageView(View, frozen=True, kw_only=True):
    """What is from a position in a topic on; the next read begins at ``next``.

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


class WriteQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How messages are written: a repeat of ``producer`` and ``sequence`` changes nothing."""

    producer: str | None = None
    sequence: Annotated[int, Meta(ge=0, le=MAX_OFFSET)] | None = None
    backlog: Annotated[int, Meta(ge=0, le=MAX_OFFSET)] | None = None


class ReadQuery(msgspec.Struct, forbid_unknown_fields=True):
    """What is read: from which offset on, how much, and how long it is waited for."""

    from_: Start = msgspec.field(default="first", name="from")
    count: ReadCount = 100
    block_ms: BlockMs = 0
    headers: WithHeaders = False


class TopicReadQuery(msgspec.Struct, forbid_unknown_fields=True):
    """What is read: from which position on, how much, and how long it is waited for."""

    from_: TopicPosition = msgspec.field(default="first", name="from")
    count: ReadCount = 100
    block_ms: BlockMs = 0
    headers: WithHeaders = False


class TailQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Where a tail begins, unless the header Last-Event-ID says where it continues."""

    from_: Start = msgspec.field(default="last", name="from")


class TopicTailQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Where a tail begins, unless the header Last-Event-ID says where it continues."""

    from_: TopicPosition = msgspec.field(default="last", name="from")


class SearchQuery(msgspec.Struct, forbid_unknown_fields=True):
    """What is searched for, from where on, and how much that may take.

    In ``tag`` a * stands for any text; ``text`` is in the value, and ``where`` is a condition on a
    field of a JSON value, like ``fare.amount>12``.
    """

    tag: str | None = None
    text: str | None = None
    where: str | None = None
    from_: Start = msgspec.field(default="first", name="from")
    newest_first: bool = False
    count: Count = 100
    max_messages: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000
    max_ms: Annotated[int, Meta(ge=1, le=MAX_SEARCH_MS)] = 1000


def write_messages(call: ApiCall) -> Any:
    """Append messages, all or none; returns their offsets.

    The body is a message, a list of messages, a message a line, or an Arrow IPC stream without
    compression with the columns tag, value and, if wished, time and headers. A repeat with the same
    producer and sequence changes nothing and is answered as the first time. Small requests of one
    moment are written together; each is in the log whole or not at all.
    """
    given = _given_entries(call)
    if isinstance(given, list) and _is_small(call, given):
        return _write_with_others(call, given)
    return _write(call, call.served.writes.stream(call.name), given, _written_view)


async def write_to_topic(call: ApiCall) -> TopicLinesWrittenView:
    """Append messages, each to the partition of its tag; returns their offsets by partition.

    The body is what a write to a stream takes. What goes to one partition is written whole or not
    at all; a repeat with the same producer and sequence completes what was cut short. Small
    requests of one moment are written together. The first write creates the topic, with 8
    partitions.
    """
    given = _given_entries(call)
    if isinstance(given, list) and _is_small(call, given):
        size = len(call.request.body)
        written = await call.served.topic_writes.write(call.name, given, size)
        return _written_in_topic(call.name, written)
    return await _write(call, call.hw.topic(call.name), given, _written_in_topic)


def _is_small(call: ApiCall, given: list[Any]) -> bool:
    """Return whether messages are written together with those of other requests."""
    query = call.query
    plain = query.producer is None and query.sequence is None and query.backlog is None
    fits = len(call.request.body) <= _BATCHED_BYTES
    return plain and fits and 0 < len(given) <= MAX_BATCH_MESSAGES


def _given_entries(call: ApiCall) -> list[Any] | pa.Table:
    """Return the messages of a request, or the Arrow table of them; raises InvalidInput."""
    if call.body is None:
        if call.sent == ARROW:
            return formats.table_of_arrow(call.request.body)
        return formats.entries_of_lines(call.request.body)
    if isinstance(call.body, NewMessage):
        return [call.body.entry()]
    return [
        # Most messages are plain text: for these no function is called.
        (message.tag, message.value)
        if message.data is UNSET
        and not (message.encoding or message.headers)
        and message.value is not UNSET
        else message.entry()
        for message in call.body
    ]


def _write_with_others(call: ApiCall, entries: list[Any]) -> asyncio.Future[LinesWrittenView]:
    """Write entries with those of other requests; raises InvalidInput for a name that cannot be."""
    future: asyncio.Future[LinesWrittenView] = asyncio.get_running_loop().create_future()

    def done(first: int | Exception, at: int) -> None:
        if future.done():
            return
        if isinstance(first, Exception):
            future.set_exception(first)
        else:
            first += at
            future.set_result(_written_view(call.name, range(first, first + len(entries))))

    call.served.writes.add(call.name, entries, len(call.request.body), done, call.request.caller)
    return future


async def _write(
    call: ApiCall, target: AsyncLog[Any, Range, Any], given: Any, view: Callable[[str, Range], V]
) -> V:
    query = call.query
    write: Any = target.write_many if isinstance(given, list) else target.append
    written = await write(
        given, backlog=query.backlog, producer=query.producer, sequence=query.sequence
    )
    return view(call.name, written)


def _written_view(stream: str, offsets: range) -> LinesWrittenView:
    first, last = (offsets[0], offsets[-1]) if offsets else (None, None)
    return LinesWrittenView(stream=stream, written=len(offsets), first=first, last=last)


def _written_in_topic(topic: str, written: dict[int, range]) -> TopicLinesWrittenView:
    return TopicLinesWrittenView(
        topic=topic,
        written=sum(map(len, written.values())),
        partitions={
            partition: OffsetsView(first=offsets[0], last=offsets[-1])
            for partition, offsets in sorted(written.items())
            if offsets
        },
    )


async def read_messages(call: ApiCall) -> Answered:
    """Read messages from an offset on, over holes; evicted offsets are shown as a gap.

    With block_ms the request waits for a first message (long poll). JSON ends once its messages
    have 4 MiB; next is where to continue. As lines of JSON or as an Arrow IPC stream, up to count
    messages are sent as fast as the client takes them.
    """
    source = Source(call.hw, call.name)
    at = await source.begin(call.query.from_)
    if call.accepted != JSON:
        return await _streamed(call, source, at)
    (passage,) = await _awaited(call, source, at, min(call.query.count, MOST_JSON), LIST_BYTES)
    gap = passage.gap if call.query.from_ != "first" else None
    return PassageView(
        stream=call.name,
        messages=[MessageView.of(message) for message in passage.messages],
        next=passage.next,
        gap=gap and OffsetsView(first=gap[0], last=gap[1]),
        last=passage.last,
    )


async def read_topic(call: ApiCall) -> Answered:
    """Read messages of all partitions from a position on; evicted offsets are shown as gaps.

    Every partition has the same share of count, at least one message. With block_ms the request
    waits for a first message (long poll). As lines of JSON or as an Arrow IPC stream, up to count
    messages are sent as fast as the client takes them, some of each partition in turn.
    """
    source = await topic_source(call.hw, call.name)
    at = await source.begin(call.query.from_)
    if call.accepted != JSON:
        return await _streamed(call, source, at)
    share = max(1, min(call.query.count, MOST_JSON) // len(at))
    passages = await _awaited(call, source, at, share, LIST_BYTES)
    return TopicPassageView(
        topic=call.name,
        messages=[
            MessageView.of(message, partition)
            for partition, passage in enumerate(passages)
            for message in passage.messages
        ],
        next=spelled([passage.next for passage in passages]),
        gaps=[
            gone(passage.gap, partition)
            for partition, passage in enumerate(passages)
            if passage.gap is not None and call.query.from_ != "first"
        ],
        last=[passage.last for passage in passages],
    )


async def _awaited(
    call: ApiCall, source: Source, at: list[int], count: int, max_bytes: int
) -> list[Passage[Any]]:
    """Read from a position on; while there is nothing, wait as long as a request says."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + call.query.block_ms / 1000
    while True:
        passages = await source.passages(at, count, max_bytes)
        if not nothing_new(passages, at) or clock() >= deadline:
            return passages
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await call.served.tails.news(source, at)


async def _streamed(call: ApiCall, source: Source, at: list[int]) -> StreamedReply:
    query = call.query
    if query.block_ms:
        await _awaited(call, source, at, 1, 1)
    if call.accepted == ARROW:
        pieces = source.arrow(at, query.count, headers=query.headers)
    else:
        pieces = _lines(call, source, at, query.count)
    return StreamedReply(200, pieces, call.accepted)


async def _lines(
    call: ApiCall, source: Source, at: list[int], count: int
) -> AsyncGenerator[bytes, None]:
    """Yield messages from a position on, a line each, and a line for each gap."""
    while count > 0:
        async with call.served.tails.turns:
            share = max(1, min(count, PIECE_MESSAGES) // len(at))
            passages = await source.passages(at, share, PIECE_BYTES)
            lines = source.lines_of(passages, count)
        if nothing_new(passages, at):
            return
        if lines:
            yield b"".join(lines)
        at = [passage.next for passage in passages]
        count -= sum(len(passage.messages) for passage in passages)


async def tail_stream(call: ApiCall) -> Answered:
    """Send messages as they are written, as server-sent events, from any offset on.

    The id of an event is the offset of its message; a client that reconnects with Last-Event-ID
    continues behind it and misses nothing. Offsets that were evicted before a slow client came to
    them are named by an event `skipped`. An id that the stream no longer has is refused.
    """
    check_name(call.name, "stream")
    return await _tailed(call, Source(call.hw, call.name))


async def tail_topic(call: ApiCall) -> Answered:
    """Send messages of all partitions as they are written, as server-sent events.

    The id of an event is the position behind it in all partitions; a client that reconnects with
    Last-Event-ID continues there and misses nothing. Offsets that were evicted before a slow client
    came to them are named by an event `skipped`.
    """
    return await _tailed(call, await topic_source(call.hw, call.name))


async def _tailed(call: ApiCall, source: Source) -> StreamedReply:
    seen = call.header(b"last-event-id")
    at = await (source.behind(seen) if seen else source.begin(call.query.from_))
    pieces = call.served.tails.events(source, at, lambda: call.served.tokens.still(call.grant))
    return StreamedReply(200, pieces, EVENTS, b"Cache-Control: no-store\r\n", endless=True)


async def search_messages(call: ApiCall) -> SearchedView:
    """Search for messages by tag, by a text in the value, or by a field of a JSON value.

    It reads messages from an offset on, or back from it with newest_first, and stops when it has
    found count messages or 4 MiB of them, has looked at max_messages, or after max_ms. The next one
    continues from next.
    """
    query = call.query
    at = None if query.from_ in ("first", "last") else query.from_
    if query.from_ == "last" and not query.newest_first:
        (at,) = await Source(call.hw, call.name).begin("last")
    found = await call.hw.stream(call.name).search(
        tag=query.tag,
        text=query.text,
        where=query.where,
        start=at,
        newest_first=query.newest_first,
        count=query.count,
        max_messages=query.max_messages,
        max_ms=query.max_ms,
        max_bytes=LIST_BYTES,
    )
    return SearchedView.of(found, call.name)


async def list_streams(call: ApiCall) -> StreamsView:
    """List the streams that the token may read, by name."""
    names = [name for name in await call.hw.streams() if call.grant.allows(Scope.READ, name)]
    page, following = call.query.of(names)
    found = await call.hw.store.run(some_streams(page))
    return StreamsView(streams=[StreamView.of(stream) for stream in found], next=following)


async def get_stream(call: ApiCall) -> msgspec.Struct:
    """Show the state of a stream: its offsets, sizes, retention, groups and readers."""
    facts = await call.hw.stream(call.name).info()
    if not (facts.exists or facts.groups or facts.readers):
        raise UnknownStream(call.name)
    return StreamView.of(facts)


_ONE: Final = "/v1/streams/{stream}"
STREAM_ROUTES: Final = (
    Route("GET", "/v1/streams", list_streams, Scope.READ, query=ListQuery, answer=StreamsView),
    Route("GET", _ONE, get_stream, Scope.READ, answer=StreamView),
    Route(
        "POST",
        f"{_ONE}/messages",
        write_messages,
        Scope.WRITE,
        query=WriteQuery,
        body=NewMessages,
        bodies=(NDJSON, ARROW),
        answer=LinesWrittenView,
        status=201,
    ),
    Route(
        "GET",
        f"{_ONE}/messages",
        read_messages,
        Scope.READ,
        query=ReadQuery,
        answer=PassageView,
        answers=(NDJSON, ARROW),
    ),
    Route(
        "GET", f"{_ONE}/search", search_messages, Scope.READ, query=SearchQuery, answer=SearchedView
    ),
    Route("GET", f"{_ONE}/tail", tail_stream, Scope.READ, query=TailQuery, answers=(EVENTS,)),
    *routes_of(STREAM, get_stream),
)


async def list_topics(call: ApiCall) -> TopicsView:
    """List the topics that the token may read, by name."""
    names = [name for name in await call.hw.topics() if call.grant.allows(Scope.READ, name)]
    page, following = call.query.of(names)
    topics = await call.hw.store.run(some_topics(page))
    return TopicsView(topics=[TopicView.of(*topic) for topic in topics], next=following)


async def get_topic(call: ApiCall) -> TopicView:
    """Show the state of a topic: its sums, and each partition as a stream."""
    topic = await opened(call, TOPIC)
    return TopicView.of(call.name, await topic.info())


async def create_topic(call: ApiCall) -> TopicCreatedView:
    """Create a topic; one that exists is left as it is, and refused with another number."""
    has = await call.hw.topic(call.name, call.body.partitions).partitions()
    return TopicCreatedView(topic=call.name, partitions=has)


_TOPIC: Final = "/v1/topics/{topic}"
TOPIC_ROUTES: Final = (
    Route("GET", "/v1/topics", list_topics, Scope.READ, query=ListQuery, answer=TopicsView),
    Route("GET", _TOPIC, get_topic, Scope.READ, answer=TopicView),
    Route("PUT", _TOPIC, create_topic, Scope.WRITE, body=TopicBody, answer=TopicCreatedView),
    Route(
        "POST",
        f"{_TOPIC}/messages",
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
        f"{_TOPIC}/messages",
        read_topic,
        Scope.READ,
        query=TopicReadQuery,
        answer=TopicPassageView,
        answers=(NDJSON, ARROW),
    ),
    Route("GET", f"{_TOPIC}/tail", tail_topic, Scope.READ, query=TopicTailQuery, answers=(EVENTS,)),
    *routes_of(TOPIC, get_topic),
)


class ReadersView(View, frozen=True, kw_only=True):
    """Readers outside the log, each on every stream that waits for it."""

    readers: list[ReaderView]


async def list_stream_readers(call: ApiCall) -> ReadersView:
    """List the readers outside the log that a stream waits for: SQL consumers, Spark queries."""
    facts = await call.hw.stream(call.name).info()
    return ReadersView(readers=_readers([facts]))


async def list_readers(call: ApiCall) -> ReadersView:
    """List the registered readers of all streams that the token may read."""
    names = [name for name in await call.hw.streams() if call.grant.allows(Scope.READ, name)]
    return ReadersView(readers=_readers(await call.hw.store.run(some_streams(names))))


def _readers(streams: list[StreamInfo]) -> list[ReaderView]:
    return [
        ReaderView.of(stream, reader) for stream in streams for reader in sorted(stream.readers)
    ]


async def get_reader(call: ApiCall) -> ReadersView:
    """Show the position of a reader on every stream that waits for it and the token may read."""
    own = [one for one in (await list_readers(call)).readers if one.reader == call.name]
    if not own:
        raise UnknownReader(call.name)
    return ReadersView(readers=own)


async def remove_reader(call: ApiCall) -> ReaderForgottenView:
    """Forget a reader that will not come back, on every stream."""
    streams = [one.stream for one in (await get_reader(call)).readers]
    for stream in streams:
        await call.hw.stream(stream).forget_reader(call.name)
    return ReaderForgottenView(reader=call.name, streams=streams)


READER_ROUTES: Final = (
    Route(
        "GET", "/v1/streams/{stream}/readers", list_stream_readers, Scope.READ, answer=ReadersView
    ),
    Route("GET", "/v1/readers", list_readers, Scope.READ, answer=ReadersView),
    Route("GET", "/v1/readers/{reader}", get_reader, Scope.READ, answer=ReadersView),
    Route(
        "DELETE",
        "/v1/readers/{reader}",
        remove_reader,
        Scope.ADMIN,
        answer=ReaderForgottenView,
        look=get_reader,
        whole_store=True,
    ),
)
