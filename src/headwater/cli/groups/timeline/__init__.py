"""``headwater timeline``: write to and read from a farm of timelines, serve it, look after it."""

from __future__ import annotations

import typer

import headwater.cli.groups.timeline.records as records
import headwater.cli.groups.timeline.upkeep as upkeep

app = typer.Typer()
app.command("insert")(records.insert)
app.command("delete")(records.delete)
app.command("select")(records.select)
app.command("score")(records.score)
app.command("serve")(records.serve)
app.command("walk")(upkeep.walk)
app.command("walks")(upkeep.walks)
app.command("scrub")(upkeep.scrub)
app.command("status")(records.status)
app.command("reshard")(upkeep.reshard)
app.command("rebuild")(upkeep.rebuild)
