"""The server and its store over HTTP: whether they serve, what they are, and the doctor."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Literal

import msgspec

from headwater.kernel.declaring import Scope
from headwater.kernel.packaging import __version__
from headwater.metrics.exposition import CONTENT_TYPE
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.routes import JSON, TEXT, Answered, Route
from headwater.serve.http.messages import Refused, Reply
from headwater.serve.readiness import NOT_READY, store_missing
from headwater.store.doctor import examine
from headwater.views.alarms import AlarmsView
from headwater.views.record import View
from headwater.views.stores import DoctorView

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
    return AlarmsView.of(call.hw.store.where, sample.now_ms, found)


STORE_ROUTES: Final = (
    Route("GET", "/healthz", get_health, None, answer=HealthView),
    Route("GET", "/readyz", get_readiness, None, answer=HealthView),
    Route("GET", "/metrics", get_metrics, Scope.READ, answers=(TEXT,), whole_store=True),
    Route("GET", "/v1/openapi.json", get_openapi, None, answer=dict[str, Any]),
    Route("GET", "/v1/store/doctor", get_doctor, Scope.READ, answer=DoctorView, whole_store=True),
    Route("GET", "/v1/alarms", get_alarms, Scope.READ, answer=AlarmsView, whole_store=True),
)
