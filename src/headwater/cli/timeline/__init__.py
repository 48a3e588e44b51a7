"""``headwater timeline``: write to and read from a farm of timelines, serve it, look after it."""

from __future__ import annotations

import typer

import headwater.cli.timeline.rebuild as rebuild
import headwater.cli.timeline.records as records
import headwater.cli.timeline.reshard as reshard
import headwater.cli.timeline.scrub as scrub
import headwater.cli.timeline.serve as serve
import headwater.cli.timeline.status as status
import headwater.cli.timeline.walk as walk
import headwater.cli.timeline.walks as walks

app = typer.Typer()
app.command("insert")(records.insert)
app.command("delete")(records.delete)
app.command("select")(records.select)
app.command("serve")(serve.serve)
app.command("walk")(walk.walk)
app.command("walks")(walks.walks)
app.command("scrub")(scrub.scrub)
app.command("status")(status.status)
app.command("reshard")(reshard.reshard)
app.command("rebuild")(rebuild.rebuild)
