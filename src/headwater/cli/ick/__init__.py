"""``headwater ick``: add to dirty lists, work them off, look after them."""

from __future__ import annotations

import typer

import headwater.cli.ick.channel as channel
import headwater.cli.ick.layout as layout
import headwater.cli.ick.single as single

app = typer.Typer()
app.command("add")(single.add)
app.command("reserve")(single.reserve)
app.command("commit")(single.commit)
app.command("exchange")(single.exchange)
app.command("stats")(single.stats)
app.command("list")(single.list_members)
app.command("delete")(single.delete)

channels = typer.Typer(no_args_is_help=True, help="Dirty lists for many consumers.")
channels.command("list")(layout.list_channels)
channels.command("add")(channel.add)
channels.command("reserve")(channel.reserve)
channels.command("commit")(channel.commit)
channels.command("release")(channel.release)
channels.command("consumers")(layout.consumers)
channels.command("stats")(layout.stats)
channels.command("members")(channel.list_members)
channels.command("shards")(layout.shards)
channels.command("delete")(layout.delete)
app.add_typer(channels, name="channel")
