"""``headwater spark walk``: all timelines of a farm compared and repaired, by many tasks."""

from __future__ import annotations

import typer

from headwater.cli.option_groups import grouped
from headwater.cli.options import DryRun
from headwater.cli.spark.running import JobFlags
from headwater.cli.timeline.records import FarmFlags, Rate


@grouped
def walk(
    farm: FarmFlags,
    *,
    rate: Rate = 10_000,
    dry_run: DryRun = False,
    job: JobFlags,
) -> None:
    """Compare all timelines on all clusters, repair what differs, and show who was behind.

    The exit code is 1 when something could not be read or written.
    """
    with job.session("walk") as spark:
        from headwater.spark.jobs.walk import walk as run

        done = run(
            spark,
            farm.instances,
            rate=rate,
            dry_run=dry_run,
            report=job.report(),
            **farm.arguments(),
        )
    job.show(done)
    raise typer.Exit(0 if done.whole else 1)
