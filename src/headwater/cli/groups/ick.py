"""``headwater ick``: add to dirty lists, work them off, look after them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from headwater import views
from headwater.cli import completing, output
from headwater.cli.derived import add_commands, known, taking
from headwater.cli.options import AsJson, StoreUrl, connected
from headwater.doors.catalogue import CHANNEL, ICK

app = typer.Typer()
channels = typer.Typer(no_args_is_help=True, help="Dirty lists for many consumers.")

ChannelName = Annotated[
    str,
    typer.Argument(
        metavar="CHANNEL",
        help="Name of the channel.",
        show_default=False,
        autocompletion=completing.channels,
    ),
]

add_commands(app, ICK, partial(known, ICK))
app.add_typer(channels, name="channel")


@channels.command("list")
def list_channels(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List all channels."""
    with connected(store) as hw:
        states = hw.store.run(views.overview.all_channels())
    output.show_list(
        states,
        views.icks.ChannelView.of,
        {
            "channel": lambda facts: facts.name,
            "shards": lambda facts: len(facts.shards),
            "ready": lambda facts: facts.ready,
            "later": lambda facts: facts.later,
            "reserved": lambda facts: facts.reserved,
            "waited_ms": lambda facts: facts.waited_ms,
            "folding": lambda facts: None if facts.folding is None else round(facts.folding, 2),
        },
        as_json,
        nothing="no channels: a channel is created by its first use",
    )


@channels.command("reserve")
@taking(CHANNEL, "reserve")
def reserve(
    name: ChannelName,
    store: StoreUrl = None,
    as_json: AsJson = False,
    *,
    count: int,
    **wishes: Any,
) -> None:
    """Lease a shard and reserve its lowest members; commit and release read what --json prints."""
    with known(CHANNEL, store, name, **wishes) as channel:
        batch = channel.reserve(count)
    if as_json:
        output.show_json(*([views.icks.BatchView.of(batch)] if batch else []))
    elif batch:
        until = output.time_text(batch.until_ms)
        output.say(f"shard {batch.shard}, token {batch.token}, leased until {until}")
        output.show_table(["member", "score", "generation"], list(batch), fold=3)
    else:
        output.say(CHANNEL.operation("reserve").row.says_not)


@channels.command("stats")
def channel_stats(name: ChannelName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show the members of every shard by state, the longest wait, and who holds it."""
    with known(CHANNEL, store, name) as channel:
        facts = channel.stats()
    if as_json:
        output.show_json(views.icks.ChannelStatsView.of(facts))
        return
    rows = [
        (
            f"{shard.shard} (left)" if shard in facts.left_behind else shard.shard,
            shard.ready,
            shard.later,
            shard.reserved,
            shard.waited_ms,
            shard.added,
            shard.entered,
            shard.lease.consumer if shard.lease else None,
            shard.lease.token if shard.lease else None,
            shard.lease.left_ms if shard.lease else None,
        )
        for shard in (*facts.shards, *facts.left_behind)
    ]
    words = ["shard", "ready", "later", "reserved", "waited_ms", "added", "entered"]
    output.show_table([*words, "consumer", "token", "left_ms"], rows)


add_commands(channels, CHANNEL, partial(known, CHANNEL))
