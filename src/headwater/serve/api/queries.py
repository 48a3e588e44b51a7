"""The streaming queries of Spark that read or write the store, over HTTP; this needs no Spark."""

from __future__ import annotations

from typing import Final

from headwater.kernel.declaring import Scope
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.routes import Route
from headwater.spark.queries.status import query_statuses
from headwater.views.queries import QueryView
from headwater.views.record import View


class QueriesView(View, frozen=True, kw_only=True):
    """The queries that a store knows."""

    queries: list[QueryView]


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
