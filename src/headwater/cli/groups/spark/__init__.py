"""``headwater spark``: the jobs of the data pipeline, one thin command for each."""

from __future__ import annotations

import typer

import headwater.cli.groups.spark.jobs as archive
import headwater.cli.groups.spark.jobs as backfill
import headwater.cli.groups.spark.jobs as compact
import headwater.cli.groups.spark.jobs as running
import headwater.cli.groups.spark.jobs as totals
import headwater.cli.groups.spark.jobs as walk
import headwater.cli.groups.spark.reconcile as reconcile
import headwater.cli.groups.spark.reconcile as status

app = typer.Typer()
app.command("totals")(totals.totals)
app.command("reconcile")(reconcile.reconcile)
app.command("compact")(compact.compact)
app.command("backfill")(backfill.backfill)
app.command("archive")(archive.archive)
app.command("restore")(archive.restore)
app.command("archives")(archive.archives)
app.command("walk")(walk.walk)
app.command("status")(status.status)
app.command("forget")(status.forget)
app.command("entry")(running.entry)
