"""What keeps streams in bounds, over HTTP: eviction, retention, readers that they wait for."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from headwater.errors import UnknownReader, UnknownStream
from headwater.kernel.declaring import Scope
from headwater.log.keys import MAX_OFFSET
from headwater.log.types import StreamInfo
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.routes import Route
from headwater.serve.api.streams import get_stream
from headwater.serve.fields import Milliseconds, Start
from headwater.views.overview import some_streams
from headwater.views.readers import ReaderForgottenView, ReaderSoughtView, ReaderView
from headwater.views.record import View
from headwater.views.streams import (
    EvictedView,
    RetainedView,
    StreamDeletedView,
)


class ReadersView(View, frozen=True, kw_only=True):
    """Readers outside the log, each on every stream that waits for it."""

    readers: list[ReaderView]


class EvictBody(msgspec.Struct, forbid_unknown_fields=True):
    """Up to which offset messages are evicted; a negative one keeps this many of the newest."""

    up_to: Annotated[int, Meta(ge=-MAX_OFFSET, le=MAX_OFFSET)]
    past_readers: bool = True


class RetentionBody(msgspec.Struct, forbid_unknown_fields=True):
    """How much is kept, None without a limit; with ``force``, readers are not waited for."""

    max_count: Annotated[int, Meta(ge=0, le=MAX_OFFSET)] | None = None
    max_age_ms: Milliseconds | None = None
    max_bytes: Annotated[int, Meta(ge=0, le=MAX_OFFSET)] | None = None
    max_idle_ms: Milliseconds | None = None
    force: bool = False


class ReaderBody(msgspec.Struct, forbid_unknown_fields=True):
    """The offset that a reader needs next."""

    next: Start


async def evict_messages(call: ApiCall) -> EvictedView:
    """Evict all messages up to an offset, or all but a number of the newest."""
    stream = call.hw.stream(call.name)
    evicted = await stream.evict(call.body.up_to, past_readers=call.body.past_readers)
    facts = await stream.info()
    return EvictedView(stream=call.name, evicted=evicted, first=facts.first)


async def set_retention(call: ApiCall) -> msgspec.Struct:
    """Set how much of a stream is kept, and evict the rest now."""
    body = call.body
    stream = call.hw.stream(call.name)
    done = await stream.retain(
        max_count=body.max_count,
        max_age_ms=body.max_age_ms,
        max_bytes=body.max_bytes,
        max_idle_ms=body.max_idle_ms,
        force=body.force,
    )
    return RetainedView.of((await stream.info()).retention, done, stream=call.name)


async def delete_stream(call: ApiCall) -> StreamDeletedView:
    """Delete a stream with its groups and readers."""
    if not await call.hw.stream(call.name).delete():
        raise UnknownStream(call.name)
    return StreamDeletedView(stream=call.name)


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


async def set_reader(call: ApiCall) -> ReaderSoughtView:
    """Register a reader outside the log, or move it: retention keeps what it needs next."""
    stream, reader = call.names
    offset = await call.hw.stream(stream).seek_reader(reader, call.body.next)
    return ReaderSoughtView(stream=stream, reader=reader, next=offset)


async def forget_reader(call: ApiCall) -> ReaderForgottenView:
    """Stop retention from waiting for a reader."""
    stream, reader = call.names
    await call.hw.stream(stream).forget_reader(reader)
    return ReaderForgottenView(reader=reader, streams=[stream])


_ONE: Final = "/v1/streams/{stream}"
UPKEEP_ROUTES: Final = (
    Route("DELETE", _ONE, delete_stream, Scope.ADMIN, answer=StreamDeletedView, look=get_stream),
    Route(
        "POST",
        f"{_ONE}/evict",
        evict_messages,
        Scope.ADMIN,
        body=EvictBody,
        answer=EvictedView,
        look=get_stream,
    ),
    Route(
        "PUT",
        f"{_ONE}/retention",
        set_retention,
        Scope.ADMIN,
        body=RetentionBody,
        answer=RetainedView,
        look=get_stream,
    ),
    Route("GET", f"{_ONE}/readers", list_stream_readers, Scope.READ, answer=ReadersView),
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
    Route(
        "PUT",
        f"{_ONE}/readers/{{reader}}",
        set_reader,
        Scope.WRITE,
        body=ReaderBody,
        answer=ReaderSoughtView,
    ),
    Route(
        "DELETE",
        f"{_ONE}/readers/{{reader}}",
        forget_reader,
        Scope.WRITE,
        answer=ReaderForgottenView,
    ),
)
