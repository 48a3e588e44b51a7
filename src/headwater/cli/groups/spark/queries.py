"""Commands about what Spark has left in a store or an archive; Spark itself is not needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.options import AsJson, StoreUrl, connected

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.spark.queries.status import QueryStatus

PLACE = "A directory, or a URI such as s3://bucket/folder; it may hold archives of many streams."


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


def archives(
    place: Annotated[str, typer.Argument(metavar="PLACE", help=PLACE, show_default=False)],
    as_json: AsJson = False,
) -> None:
    """List the archives in a directory, and what each holds. Spark is not needed."""
    from headwater.spark.archives.table import Archive, absolute_place, archived_streams

    where = absolute_place(place)
    found = [
        contents for name in archived_streams(where) if (contents := Archive(where, name).load())
    ]
    output.show_list(
        found,
        views.queries.archive_view,
        {
            "stream": lambda one: one.stream,
            "first": lambda one: one.first,
            "last": lambda one: one.last,
            "messages": lambda one: one.rows,
            "files": lambda one: len(one.files),
            "size": lambda one: output.size_text(one.bytes),
            "gaps": lambda one: ", ".join(output.range_text(*gap) for gap in one.gaps) or None,
        },
        as_json,
        nothing="no archives here: headwater spark archive makes one",
    )
