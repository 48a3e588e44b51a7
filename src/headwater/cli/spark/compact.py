"""``headwater spark compact``: the last message of every tag, for logs of any size."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater.cli.option_groups import grouped
from headwater.cli.options import DryRun, duration_ms
from headwater.cli.spark.running import LogJobFlags


@grouped
def compact(
    *,
    markers: Annotated[
        str,
        typer.Option(
            metavar="SPAN",
            help="The age after which delete markers are removed, once every reader is past them.",
        ),
    ] = "24h",
    dry_run: DryRun = False,
    job: LogJobFlags,
) -> None:
    """Keep the last message of every tag; offsets do not change. It may be run again after a crash.

    The exit code is 1 when others changed parts of the log at the same moment; these parts are left
    as they are.
    """
    marker_ms = duration_ms(markers, "--markers")
    with job.session("compact") as spark:
        from headwater.spark.jobs.compact import compact as run

        done = run(
            spark,
            **job.log(),
            marker_ms=marker_ms,
            dry_run=dry_run,
            report=job.report(),
        )
    job.show(done)
    raise typer.Exit(1 if done.left else 0)
