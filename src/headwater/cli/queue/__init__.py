"""``headwater queue``: push, pop, work off and look after queues."""

from __future__ import annotations

import typer

import headwater.cli.queue.messages as messages
import headwater.cli.queue.upkeep as upkeep
import headwater.cli.queue.work as work
from headwater.cli import letters
from headwater.cli.queue.cli_types import check_ids, known_queue

app = typer.Typer()
app.command("list")(upkeep.list_queues)
app.command("push")(messages.push)
app.command("pop")(messages.pop)
app.command("ack")(messages.ack)
app.command("nack")(messages.nack)
app.command("release")(messages.release)
app.command("work")(work.work)
app.command("stats")(upkeep.stats)
app.command("peek")(upkeep.peek)
letters.add_letter_commands(app, letters.queue_letters(known_queue, check_ids))
app.command("configure")(upkeep.configure)
app.command("limit")(upkeep.limit)
app.command("promote")(upkeep.promote)
app.command("pause")(upkeep.pause)
app.command("resume")(upkeep.resume)
app.command("purge")(upkeep.purge)
app.command("delete")(upkeep.delete)
