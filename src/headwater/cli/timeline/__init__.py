"""``headwater timeline``: serve a farm of timelines over HTTP."""

from __future__ import annotations

import typer

import headwater.cli.timeline.serve as serve

app = typer.Typer(no_args_is_help=True, help="Timelines on a farm of clusters.")
app.command("serve")(serve.serve)
