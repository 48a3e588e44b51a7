"""Commands on channels as a whole: how they stand, who consumes, how many shards."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.ick.channel import known_channel
from headwater.cli.ick.cli_types import ChannelName
from headwater.cli.options import AsJson, StoreUrl, Yes, confirm, connected


def list_channels(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List all channels."""
    with connected(store) as hw:
        found = hw.store.run(views.overview.all_channels())
    output.show_list(
        found,
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


def consumers(name: ChannelName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show who holds which shard until when."""
    with known_channel(store, name) as channel:
        found = channel.consumers()
    output.show_list(
        found,
        views.icks.LeaseView.of,
        {
            "shard": lambda lease: lease.shard,
            "consumer": lambda lease: lease.consumer,
            "token": lambda lease: lease.token,
            "reserved": lambda lease: lease.reserved,
            "until": lambda lease: output.time_text(lease.until_ms),
            "left_ms": lambda lease: lease.left_ms,
        },
        as_json,
        nothing="nobody holds a shard",
    )


def stats(name: ChannelName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show the members of every shard by state, the longest wait, and who holds it."""
    with known_channel(store, name) as channel:
        facts = channel.stats()
    if facts is None:
        return
    if as_json:
        output.show_json(views.icks.ChannelShardsView.of(facts))
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


def shards(
    name: ChannelName,
    number: Annotated[
        int | None,
        typer.Argument(
            metavar="[NUMBER]", min=1, help="The new number of shards.", show_default=False
        ),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the number of shards; or change it, while the channel is in use.

    The command does not wait: consumers and the housekeeper finish what cannot be done yet.
    """
    with known_channel(store, name) as channel:
        if number is None:
            facts = channel.stats()
            left = facts.left_behind if facts else ()
            count, settled = len(facts.shards) if facts else 0, not left
            leases = sum(shard.lease is not None for shard in left)
        else:
            count, settled, leases = channel.reshard(number)
    moving = "" if settled else f"; members still move there, {leases} leases are waited for"
    output.answer(
        views.icks.LayoutView(channel=name, shards=count, settled=settled, leases=leases),
        f"{count} shards{moving}",
        as_json,
    )


def delete(
    name: ChannelName, yes: Yes = False, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Remove a channel with all its members permanently."""
    with known_channel(store, name) as channel:
        facts = channel.stats()
        size = facts.ready + facts.later + facts.reserved if facts else 0
        confirm(f"Delete {name} with {output.counted(size, 'member')}?", yes)
        channel.delete()
    output.answer(views.icks.ChannelDeletedView(channel=name), f"deleted {name}", as_json)
