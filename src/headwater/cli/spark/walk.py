"""``headwater spark walk``: all timelines of a farm compared and repaired, by many tasks."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater.cli.options import AsJson
from headwater.cli.spark.running import Conf, Master, show_summary, spark_session
from headwater.cli.timeline.cli_types import (
    MAX_SIZE,
    TIMEOUT_MS,
    Hash,
    Horizon,
    Instances,
    MaxSize,
    Timeout,
)


def walk(
    instances: Instances,
    rate: Annotated[
        int, typer.Option(help="Timelines a second at most, by all tasks together.")
    ] = 10_000,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how far clusters differ.")
    ] = False,
    max_size: MaxSize = MAX_SIZE,
    horizon: Horizon = None,
    hash: Hash = "murmur3",
    timeout_ms: Timeout = TIMEOUT_MS,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Compare all timelines on all clusters, repair what differs, and tell who was behind.

    Exit 1 when something could not be read or written.
    """
    with spark_session("walk", master, conf) as spark:
        from headwater.spark.jobs.progress import JobReport
        from headwater.spark.jobs.walk import walk as run

        done = run(
            spark,
            instances,
            rate=rate,
            max_size=max_size,
            horizon=horizon,
            hash=hash,
            timeout_ms=timeout_ms,
            dry_run=dry_run,
            report=JobReport.of_command(quiet=as_json),
        )
    show_summary(done, as_json)
    raise typer.Exit(0 if done.whole else 1)
