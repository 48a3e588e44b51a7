"""The life of a message over HTTP, and the message of a row of the outbox."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from headwater.errors import HeadwaterError
from headwater.kernel.declaring import Scope
from headwater.outbox.batches import StagedRow
from headwater.serve.api.calls import ApiCall, Served
from headwater.serve.api.routes import Route
from headwater.serve.http.messages import Refused
from headwater.views.record import View
from headwater.views.traces import (
    OutboxFacts,
    TraceFacts,
    TraceView,
    archive_files,
    look_at_life,
    trace_of,
)

if TYPE_CHECKING:
    from headwater.log.types import Message


class RowPlaceView(View, frozen=True, kw_only=True):
    """Where a row of the outbox is: ``staged`` still, or at an offset of its stream."""

    row: int
    stream: str
    staged: bool
    offset: int | None = None
    batch: int | None = None


async def traced(
    served: Served, stream: str, offset: int
) -> tuple[TraceView, TraceFacts, Message[Any] | None]:
    """Return the life of a message, what the store knows of it, and itself unless it is gone.

    Raises Refused, 404, for an offset that is not written yet.
    """
    facts = await served.hw.store.run(look_at_life(stream, offset))
    if not 1 <= offset <= facts.info.last:
        why = f"offset {offset:,} is not written yet; the last is {facts.info.last:,}"
        raise Refused(404, why)
    message = (await served.hw.stream(stream).read(offset, 1))[0]
    outbox = await _outbox(served, stream, offset)
    files = await asyncio.to_thread(archive_files, facts, offset)
    return trace_of(facts, message, offset, outbox, files), facts, message


async def _outbox(served: Served, stream: str, offset: int) -> OutboxFacts | None:
    if served.database is None:
        return None
    try:
        status = await served.database.status()
        batch = await served.database.batch_of(stream, offset)
    except HeadwaterError as error:
        return OutboxFacts(trouble=str(error))
    consumers = {
        one.consumer: (one.next_offset, one.idle_ms)
        for one in status.checkpoints
        if one.stream == stream
    }
    return OutboxFacts(batch, consumers)


async def find_row(served: Served, row: int) -> RowPlaceView | None:
    """Return where a row of the outbox is; None when the ledger does not have it.

    Raises Refused, 404, where no database is served.
    """
    if served.database is None:
        raise Refused(404, "this server has no outbox; start it with --db URL")
    found = await served.database.find_row(row)
    if found is None:
        return None
    if isinstance(found, StagedRow):
        return RowPlaceView(row=row, stream=found.stream, staged=True)
    offset = found.offset_of(row)
    return RowPlaceView(
        row=row, stream=found.stream, staged=False, offset=offset, batch=found.batch
    )


async def get_trace(call: ApiCall) -> TraceView:
    """Return the life of a message: outbox, batch, log, every group and reader, archive."""
    stream, given = call.names
    trace, _, _ = await traced(call.served, stream, _number(given, "an offset"))
    return trace


async def get_row(call: ApiCall) -> RowPlaceView:
    """Return where a row of the outbox is: staged still, or in the log, of the newest batches."""
    row = _number(call.names[0], "a row")
    found = await find_row(call.served, row)
    if found is None:
        why = "it was rolled back, is not committed yet, or is not of the newest 10,000 batches"
        raise Refused(404, f"row {row:,} is not known: {why}")
    return found


def _number(given: str, what: str) -> int:
    if not (given.isascii() and given.isdigit() and len(given) <= 18):
        raise Refused(400, f"{given!r} is not {what}; give a whole number from 1 on")
    return int(given)


TRACE_ROUTES: Final = (
    Route(
        "GET",
        "/v1/streams/{stream}/messages/{offset}/trace",
        get_trace,
        Scope.READ,
        answer=TraceView,
    ),
    Route(
        "GET", "/v1/outbox/rows/{row}", get_row, Scope.READ, answer=RowPlaceView, whole_store=True
    ),
)
