"""``headwater spark``: the jobs of the data pipeline, one thin command for each."""

from __future__ import annotations

import typer

import headwater.cli.spark.running as running

app = typer.Typer(no_args_is_help=True, help="Fold, compare, compact and archive on Spark.")
app.command("entry")(running.entry)
