"""``headwater spark``: the jobs of the data pipeline, one thin command for each."""

from __future__ import annotations

import typer

from headwater.cli.groups.spark import jobs, queries, submit

app = typer.Typer()
for _command in (
    jobs.totals,
    jobs.reconcile,
    jobs.compact,
    jobs.backfill,
    jobs.archive,
    jobs.restore,
    queries.archives,
    jobs.walk,
    queries.status,
    queries.forget,
    submit.entry,
):
    app.command(_command.__name__)(_command)
