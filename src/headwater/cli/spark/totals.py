"""``headwater spark totals``: add up a stream or topic into SQL."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from headwater.cli.options import AsJson, DatabaseUrl, StoreUrl, duration_ms
from headwater.cli.spark.running import (
    Conf,
    IsTopic,
    Master,
    Name,
    named_log,
    show_summary,
    spark_session,
)


class OnGap(StrEnum):
    """What to do about messages that were evicted before they were read."""

    STOP = "stop"
    SKIP = "skip"


def totals(
    name: Name,
    db: DatabaseUrl,
    value: Annotated[
        str,
        typer.Option(
            metavar="FIELD", help="The whole number in a record to add up.", show_default=False
        ),
    ],
    topic: IsTopic = False,
    job: Annotated[str, typer.Option(help="Whose sums these are.")] = "totals",
    per: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FIELD",
            help="Sums for each value of a field; may be given several times.",
            show_default=False,
        ),
    ] = None,
    window: Annotated[
        str, typer.Option(metavar="SPAN", help="Sums for each such span of time; 0 for none.")
    ] = "1m",
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Add up what is there, and end.")
    ] = False,
    every: Annotated[
        str, typer.Option(metavar="SPAN", help="How often to look for new messages.")
    ] = "1s",
    batch: Annotated[int, typer.Option(min=1, help="So many messages at a time.")] = 200_000,
    on_gap: Annotated[
        OnGap, typer.Option(help="Whether to stop at messages that were evicted unread.")
    ] = OnGap.STOP,
    anew: Annotated[
        bool, typer.Option("--anew", help="Forget what the job has, and begin at the first.")
    ] = False,
    store: StoreUrl = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Add up a stream or topic into the table headwater_totals, each record once.

    Goes on where it was; runs until Ctrl-C or SIGTERM, or with --available-now to the end.
    """
    window_ms, every_ms = duration_ms(window), duration_ms(every)
    with spark_session("totals", master, conf) as spark:
        from headwater.spark.jobs.folding import Shape
        from headwater.spark.jobs.progress import JobReport
        from headwater.spark.jobs.totals import totals as add_up
        from headwater.stopping import StopSignal, stop_on_signals

        stop = StopSignal()
        shape = Shape(value, _fields(per or []), window_ms)
        with stop_on_signals(stop.set):
            done = add_up(
                spark,
                **named_log(name, topic, store),
                db=db,
                job=job,
                shape=shape,
                available_now=available_now,
                every_ms=every_ms,
                batch=batch,
                on_gap=on_gap.value,
                anew=anew,
                report=JobReport.of_command(quiet=as_json),
                stop=stop,
            )
    show_summary(done, as_json)


def _fields(words: list[str]) -> dict[str, str]:
    """Understand what sums are made per: a name and its field, which may be the same."""
    return {name: field or name for name, _, field in (word.partition("=") for word in words)}
