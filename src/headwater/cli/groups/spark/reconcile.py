"""Commands that compare with Spark, show its queries, and submit a job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.groups.spark.jobs import LogJobFlags
from headwater.cli.options import AsJson, DatabaseUrl, DryRun, StoreUrl, connected, grouped

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.spark.jobs.reconcile import AccountVerdict, Reconciled
    from headwater.spark.queries.status import QueryStatus


# ── Reconcile ─────────────────────────────────────────────────────────────────────────────────────


_SHOWN = 20


@grouped
def reconcile(
    db: DatabaseUrl,
    table: Annotated[
        str,
        typer.Option(help="The canonical table, with one row for each event.", show_default=False),
    ],
    per: Annotated[str, typer.Option(help="The column that sums are kept by.", show_default=False)],
    value: Annotated[str, typer.Option(help="The column that is added up.", show_default=False)],
    state: Annotated[
        str,
        typer.Option(
            metavar="TABLE", help="The table where consumers keep sums by key.", show_default=False
        ),
    ],
    *,
    key: Annotated[str, typer.Option(help="The column that identifies a row.")] = "id",
    record_key: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD", help="The key in a record. Default: as --key.", show_default=False
        ),
    ] = None,
    whole: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE",
            help="The table where consumers keep the sum of all, if they do.",
            show_default=False,
        ),
    ] = None,
    records: Annotated[
        str, typer.Option(metavar="COLUMN", help="The number of records in both tables.")
    ] = "records",
    total: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="The sum in both tables. Default: as --value.",
            show_default=False,
        ),
    ] = None,
    consumer: Annotated[
        list[str] | None,
        typer.Option(help="Compare only this consumer; may be repeated.", show_default=False),
    ] = None,
    consumers_db: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The database of the consumers, if it is another."),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="An archive of the stream, for evicted messages."),
    ] = None,
    partitions: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Read the table with N tasks, divided by its key."),
    ] = 1,
    fix: Annotated[
        bool, typer.Option("--fix", help="Write reset records for consumers that drifted.")
    ] = False,
    dry_run: DryRun = False,
    job: LogJobFlags,
) -> None:
    """Compare consumers with the canonical table, each at its own position.

    The exit code is 1 when a consumer has drifted; with --fix only when no reset could be written
    for it.
    """
    with job.session("reconcile") as spark:
        from headwater.spark.jobs.ledger import Keeping
        from headwater.spark.jobs.reconcile import Canon
        from headwater.spark.jobs.reconcile import reconcile as compare

        found = compare(
            spark,
            **job.log(),
            db=db,
            canon=Canon(table, key=key, per=per, value=value, record_key=record_key),
            keeping=Keeping(state, whole, per=per, records=records, total=total or value),
            consumers=consumer or (),
            consumers_db=consumers_db,
            archive=archive,
            partitions=partitions,
            fix=fix,
            dry_run=dry_run,
            report=job.report(),
        )
    if job.as_json:
        output.show_json(views.jobs.job_view(found))
    else:
        show(found)
    if not found.settled:
        raise typer.Exit(1)


def show(found: Reconciled) -> None:
    """Print a comparison for people."""
    output.show_table(
        ["account", "kind", "next", "verdict"],
        [
            (each.name, each.kind, ", ".join(map(str, each.next.values())), _verdict(each))
            for each in found.verdicts
        ],
    )
    drift = [
        (
            *(each.name, one.name or "(all)", one.has.records, one.right.records),
            *(one.has.total, one.right.total, one.has.total - one.right.total),
        )
        for each in found.drifted
        for one in each.drift
    ]
    if drift:
        output.say("")
        output.show_table(
            ["account", "of", "records", "right", "total", "right", "too much"], drift[:_SHOWN]
        )
        if len(drift) > _SHOWN:
            output.say(f"and {len(drift) - _SHOWN} more")
    output.say("")
    for line in _findings(found):
        output.say(line)
    for each in found.drifted:
        if each.state is not None:
            output.say(f"reset of {each.name}: {each.state}")
    output.say(found.headline())


def _verdict(verdict: AccountVerdict) -> str:
    if verdict.unjudged:
        return f"not judged: {verdict.unjudged}"
    if not verdict.drift:
        return "right"
    if verdict.reset is not None:
        return f"drifted; reset by offset {verdict.reset}"
    return "drifted" if verdict.kind == "consumer" else "drifted; run it with --anew"


def _findings(found: Reconciled) -> list[str]:
    """Return what was found beside drift, a sentence each."""
    lines = []
    if found.lost:
        keys = ", ".join(found.lost_keys)
        what = (
            "rows without a record"
            if found.complete
            else "rows whose records were evicted or never written (--archive shows which)"
        )
        lines.append(f"{found.lost} {what}: {keys}")
    if found.phantoms:
        some = ", ".join(f"{key} at {offset}" for key, offset in found.phantom_records)
        lines.append(f"{found.phantoms} records without a row: {some}")
    if found.doubles:
        some = ", ".join(f"{key} at {a} and {b}" for key, a, b in found.double_records)
        lines.append(f"{found.doubles} rows with several records: {some}")
    if found.unreadable:
        lines.append(f"{found.unreadable} messages without a key")
    for stream, first in found.first.items():
        if first > 1:
            lines.append(f"offsets 1 to {first - 1} of {stream} could not be read")
    return lines


# ── Status ────────────────────────────────────────────────────────────────────────────────────────
# ``headwater spark status``: the streaming queries that read or write a store.


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


# ── Submit ────────────────────────────────────────────────────────────────────────────────────────
# For spark-submit: runs ``headwater spark`` with the words that follow this file's name.
#
# spark-submit --master spark://host:7077 $(headwater spark entry) totals rides --db ...
#
# Master and settings are those that spark-submit was given.


def main() -> None:
    """Run a job as the command line does, with its exit code."""
    # Python puts the folder of a script first on its path, where modules of this package would
    # pass for others of the same name.
    here = Path(__file__).resolve().parent
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != here]
    from headwater.cli.program import narrowed

    words = ["spark", *sys.argv[1:]]
    narrowed(words)(words, prog_name="headwater")


if __name__ == "__main__":
    main()
