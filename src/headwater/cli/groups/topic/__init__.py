"""``headwater topic``: write, read and look after topics and their groups."""

from __future__ import annotations

import typer

import headwater.cli.groups.topic.messages as messages
import headwater.cli.groups.topic.upkeep as upkeep
from headwater.cli.derived import add_commands, limit_command
from headwater.cli.groups import letters
from headwater.cli.options import TAKES_STEPS, known_topic
from headwater.doors.catalogue import TOPIC, TOPIC_GROUP

app = typer.Typer()
app.command("create")(upkeep.create)
app.command("list")(upkeep.list_topics)
app.command("write")(messages.write)
app.command("read")(messages.read)
app.command("tail")(messages.tail)
app.command("info")(upkeep.info)
app.command("groups")(upkeep.list_groups)
app.command("set-group")(upkeep.set_group)
app.command("limit")(limit_command(TOPIC_GROUP, upkeep.known_group, "max_in_flight", "rate"))
app.command("seek", context_settings=TAKES_STEPS)(upkeep.seek)
add_commands(app, TOPIC_GROUP, upkeep.known_group, dead=letters.show_group_letters)
app.command("retain")(upkeep.retain)
add_commands(app, TOPIC, known_topic)
