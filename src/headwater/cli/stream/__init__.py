"""``headwater stream``: write, read and look after streams and their groups."""

from __future__ import annotations

import typer

import headwater.cli.stream.groups as groups
import headwater.cli.stream.messages as messages
import headwater.cli.stream.replaying as replaying
import headwater.cli.stream.searching as searching
import headwater.cli.stream.tracing as tracing
import headwater.cli.stream.upkeep as upkeep
from headwater.cli import letters
from headwater.cli.derived import add_commands
from headwater.cli.limits import limit_command
from headwater.doors.catalogue import GROUP

app = typer.Typer()
app.command("list")(upkeep.list_streams)
app.command("write")(messages.write)
app.command("read")(messages.read)
app.command("search")(searching.search)
app.command("trace")(tracing.trace)
app.command("replay")(replaying.replay)
app.command("tail")(messages.tail)
app.command("info")(upkeep.info)
app.command("groups")(groups.list_groups)
app.command("set-group")(groups.set_group)
app.command("limit")(limit_command(GROUP, groups.known_group))
add_commands(app, GROUP, groups.known_group)
letters.add_letter_commands(app, letters.group_letters(groups.known_group))
app.command("evict")(upkeep.evict)
app.command("retain")(upkeep.retain)
app.command("compact")(upkeep.compact)
app.command("seal")(upkeep.seal)
app.command("delete")(upkeep.delete)
