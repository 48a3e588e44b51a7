"""A store over HTTP: what it holds, alarms, metrics, queries, and the life of a message."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from headwater.errors import HeadwaterError
from headwater.kernel.declaring import Scope
from headwater.kernel.packaging import __version__
from headwater.metrics.exposition import CONTENT_TYPE
from headwater.outbox.batches import StagedRow
from headwater.serve.api.calls import ApiCall, Served
from headwater.serve.api.routes import JSON, TEXT, Answered, Route
from headwater.serve.http.messages import Refused, Reply
from headwater.serve.readiness import NOT_READY, store_missing
from headwater.spark.queries.status import query_statuses
from headwater.store.doctor import examine
from headwater.views.queries import QueryView
from headwater.views.record import View
from headwater.views.stores import AlarmsView, DoctorView
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


# While somebody asks for alarms, the store is sampled so often.
_EVERY_S: Final = 5.0


class HealthView(View, frozen=True, kw_only=True):
    """Whether a server serves."""

    status: Literal["ok"] = "ok"
    version: str = __version__


async def get_health(call: ApiCall) -> HealthView:  # noqa: ARG001
    """Answer that the process is alive, whatever its store does."""
    return HealthView()


async def get_readiness(call: ApiCall) -> HealthView:
    """Answer whether requests can be served: the store answers within two seconds."""
    missing = await store_missing(call.hw)
    if missing is not None:
        raise Refused(503, missing if call.grant.widest is not None else NOT_READY)
    return HealthView()


async def get_openapi(call: ApiCall) -> Answered:
    """Return this description of the API, as OpenAPI 3.1."""
    told = call.served.openapi
    if call.request.root:
        servers = [{"url": call.request.root}]
        told = b'{"servers":%b,%b' % (msgspec.json.encode(servers), told[1:])
    return Reply(200, told, JSON)


async def get_metrics(call: ApiCall) -> Answered:
    """Return the metrics of the store and of all processes of this server, for Prometheus."""
    return Reply(200, await call.served.watched.sampler.page(), CONTENT_TYPE)


async def get_doctor(call: ApiCall) -> msgspec.Struct:
    """Examine what the store really promises, by its settings and its state; changes nothing."""
    report = await asyncio.to_thread(examine, call.served.store_url)
    return DoctorView.of(report)


async def get_alarms(call: ApiCall) -> AlarmsView:
    """List what somebody should look at or do: the same as on the overview of the console."""
    sample = await call.served.watched.sweeps.whole(_EVERY_S)
    found = await call.served.watched.alarms.found(sample)
    return AlarmsView.of(store=call.hw.store.where, as_of_ms=sample.now_ms, alarms=found)


STORE_ROUTES: Final = (
    Route("GET", "/healthz", get_health, None, answer=HealthView),
    Route("GET", "/readyz", get_readiness, None, answer=HealthView),
    Route("GET", "/metrics", get_metrics, Scope.READ, answers=(TEXT,), whole_store=True),
    Route("GET", "/v1/openapi.json", get_openapi, None, answer=dict[str, Any]),
    Route("GET", "/v1/store/doctor", get_doctor, Scope.READ, answer=DoctorView, whole_store=True),
    Route("GET", "/v1/alarms", get_alarms, Scope.READ, answer=AlarmsView, whole_store=True),
)


class QueriesView(View, frozen=True, kw_only=True):
    """The queries that a store knows."""

    queries: list[QueryView]  # type: ignore[valid-type]  # mirror makes it at run time


async def list_queries(call: ApiCall) -> QueriesView:
    """List the streaming queries of Spark: epoch, lag, what each reads, writes and has staged."""
    found = await call.hw.store.run(query_statuses())
    return QueriesView(queries=[QueryView.of(one) for one in found])


QUERY_ROUTES: Final = (
    Route(
        "GET",
        "/v1/spark/queries",
        list_queries,
        Scope.READ,
        answer=QueriesView,
        whole_store=True,
    ),
)


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
