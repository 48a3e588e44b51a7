"""Readers outside the log over HTTP: those that retention waits for, on all streams."""

from __future__ import annotations

from typing import Final

from headwater.errors import UnknownReader
from headwater.kernel.declaring import Scope
from headwater.log.types import StreamInfo
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.routes import Route
from headwater.views.overview import some_streams
from headwater.views.record import View
from headwater.views.streams import ReaderForgottenView, ReaderView


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
