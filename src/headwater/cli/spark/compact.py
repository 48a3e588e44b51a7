"""``headwater spark compact``: the last message of every tag, for logs of any size."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater.cli.options import AsJson, StoreUrl, duration_ms
from headwater.cli.spark.running import (
    Conf,
    DryRun,
    IsTopic,
    Master,
    Name,
    named_log,
    show_summary,
    spark_session,
)


def compact(
    name: Name,
    topic: IsTopic = False,
    markers: Annotated[
        str,
        typer.Option(
            metavar="SPAN",
            help="Delete markers older than this go too, once every reader is past them.",
        ),
    ] = "24h",
    dry_run: DryRun = False,
    store: StoreUrl = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Keep the last message of every tag; offsets stay. May be run again after a crash.

    Exit 1 when others changed parts of the log at the same moment, which are left as they are.
    """
    marker_ms = duration_ms(markers)
    with spark_session("compact", master, conf) as spark:
        from headwater.spark.jobs.compact import compact as run
        from headwater.spark.jobs.progress import JobReport

        done = run(
            spark,
            **named_log(name, topic, store),
            marker_ms=marker_ms,
            dry_run=dry_run,
            report=JobReport.of_command(quiet=as_json),
        )
    show_summary(done, as_json)
    raise typer.Exit(1 if done.left else 0)
