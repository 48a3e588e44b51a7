"""``headwater spark status``: the streaming queries that read or write a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.options import AsJson, StoreUrl, connected

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.spark.queries.status import QueryStatus


def status(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show the streaming queries that read or write a store, and what waits for them.

    Lag is the number of messages, and the age of the oldest of them. Staged is the number of bytes
    for streams and topics that are not published yet. A query is recorded with its first
    micro-batch, and every ten seconds while it runs.
    """
    from headwater.spark.queries.status import query_statuses

    with connected(store) as hw:
        found = hw.store.run(query_statuses())
    columns: dict[str, Callable[[QueryStatus], object]] = {
        "query": lambda row: row.name or row.query,
        "state": lambda row: row.state,
        "epoch": lambda row: row.epoch,
        "reads": lambda row: ", ".join(f"{one.stream}: {one.next}" for one in row.reads),
        "lag": lambda row: row.lag,
        "age s": lambda row: f"{row.lag_ms / 1000:.1f}",
        "writes": lambda row: ", ".join(row.writes),
        "staged": lambda row: row.staged_bytes,
        "seen s": lambda row: f"{row.seen_ms / 1000:.1f}",
        "checkpoint": lambda row: row.checkpoint,
    }
    nothing = "no queries: a streaming query is noted with its first micro-batch"
    output.show_list(found, views.queries.QueryView.of, columns, as_json, nothing=nothing)


def forget(
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="Id or name of the query.", show_default=False)
    ],
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Forget a query that will not come back; a running query is recorded again.

    Retention waits for a query that has a groupId until `headwater reader remove`.
    """
    from headwater.spark.queries.status import forget_query

    with connected(store) as hw:
        gone = hw.store.run(forget_query(query))
    done = views.queries.QueryForgottenView(query=gone.query, name=gone.name)
    output.answer(done, f"forgot {gone.name or gone.query}", as_json)
