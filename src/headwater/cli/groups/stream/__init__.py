"""``headwater stream``: write, read and look after streams and their groups."""

from __future__ import annotations

import typer

import headwater.cli.groups.stream.messages as messages
import headwater.cli.groups.stream.upkeep as upkeep
from headwater.cli.derived import add_commands, limit_command
from headwater.cli.groups import letters
from headwater.cli.options import known_stream
from headwater.doors.catalogue import GROUP, STREAM

app = typer.Typer()
app.command("list")(upkeep.list_streams)
app.command("write")(messages.write)
app.command("read")(messages.read)
app.command("search")(messages.search)
app.command("trace")(messages.trace)
app.command("replay")(messages.replay)
app.command("tail")(messages.tail)
app.command("info")(upkeep.info)
app.command("groups")(upkeep.list_groups)
app.command("set-group")(upkeep.set_group)
app.command("limit")(limit_command(GROUP, upkeep.known_group))
add_commands(app, GROUP, upkeep.known_group, dead=letters.show_group_letters)
app.command("evict")(upkeep.evict)
app.command("retain")(upkeep.retain)
add_commands(app, STREAM, known_stream)
