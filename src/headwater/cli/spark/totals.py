"""``headwater spark totals``: add up a stream or topic into SQL."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from headwater.cli.option_groups import grouped
from headwater.cli.options import DatabaseUrl, DryRun, duration_ms
from headwater.cli.spark.running import LogJobFlags


class OnGap(StrEnum):
    """What to do about messages that were evicted before they were read."""

    STOP = "stop"
    SKIP = "skip"


@grouped
def totals(
    db: DatabaseUrl,
    value: Annotated[
        str,
        typer.Option(metavar="FIELD", help="The field to add up, an integer.", show_default=False),
    ],
    *,
    job_name: Annotated[
        str, typer.Option("--job", help="The name under which the sums are kept.")
    ] = "totals",
    per: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FIELD",
            help="Add up for each value of a field; may be repeated.",
            show_default=False,
        ),
    ] = None,
    window: Annotated[
        str,
        typer.Option(
            metavar="SPAN", help="Also add up for each window of this length; 0: no windows."
        ),
    ] = "1m",
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Add up what is there, then end.")
    ] = False,
    every: Annotated[
        str, typer.Option(metavar="SPAN", help="How often to look for new messages.")
    ] = "1s",
    batch: Annotated[
        int, typer.Option(min=1, metavar="N", help="Add up to N messages in one transaction.")
    ] = 200_000,
    on_gap: Annotated[
        OnGap, typer.Option(help="What to do about messages that were evicted unread.")
    ] = OnGap.STOP,
    anew: Annotated[
        bool, typer.Option("--anew", help="Remove the sums, and begin at the first message.")
    ] = False,
    dry_run: DryRun = False,
    job: LogJobFlags,
) -> None:
    """Add up a stream or topic into the table headwater_totals, each record once.

    It continues where it was, until Ctrl-C or SIGTERM, or with --available-now until the end of the
    log.
    """
    window_ms, every_ms = duration_ms(window, "--window"), duration_ms(every, "--every")
    with job.session("totals") as spark:
        from headwater.kernel.stopping import StopSignal, stop_on_signals
        from headwater.spark.jobs.folding import Shape
        from headwater.spark.jobs.totals import totals as add_up

        shape = Shape(value, _fields(per or []), window_ms)
        job.require_log("to add up")
        stop = StopSignal()
        with stop_on_signals(stop.set):
            done = add_up(
                spark,
                **job.log(),
                db=db,
                job=job_name,
                shape=shape,
                available_now=available_now,
                every_ms=every_ms,
                batch=batch,
                on_gap=on_gap.value,
                anew=anew,
                dry_run=dry_run,
                report=job.report(),
                stop=stop,
            )
    job.show(done)


def _fields(words: list[str]) -> dict[str, str]:
    """Parse what sums are kept per: a name and its field, which may be the same."""
    return {name: field or name for name, _, field in (word.partition("=") for word in words)}
