"""Commands on channels as a whole: how they stand, who consumes, how many shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli import output
from headwater.cli.ick.channel import known_channel
from headwater.cli.ick.cli_types import ChannelName, Yes
from headwater.cli.options import AsJson, StoreUrl, connected

if TYPE_CHECKING:
    from headwater.ick.types import ShardStats


def list_channels(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List all channels."""
    with connected(store) as hw:
        every = [hw.ick_channel(name).stats() for name in hw.ick_channels()]
    rows = [
        (facts.name, len(facts.shards), facts.ready, facts.later, facts.reserved, facts.waited_ms)
        for facts in every
        if facts is not None
    ]
    headings = ["channel", "shards", "ready", "later", "reserved", "waited_ms"]
    if as_json:
        output.show_json(*(dict(zip(headings, row, strict=True)) for row in rows))
    elif rows:
        output.show_table(headings, rows)
    else:
        output.say("no channels: a channel comes into being with its first use")


def consumers(name: ChannelName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show who holds which shard until when."""
    with known_channel(store, name) as channel:
        found = channel.consumers()
    if as_json:
        output.show_json(*(lease._asdict() for lease in found))
    elif found:
        output.show_table(
            ["shard", "consumer", "token", "reserved", "until", "left_ms"],
            [
                (
                    lease.shard,
                    lease.consumer,
                    lease.token,
                    lease.reserved,
                    output.time_text(lease.until_ms),
                    lease.left_ms,
                )
                for lease in found
            ],
        )
    else:
        output.say("nobody holds a shard")


def stats(name: ChannelName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show how every shard stands."""
    with known_channel(store, name) as channel:
        facts = channel.stats()
    if facts is None:
        return
    if as_json:
        totals = {
            what: getattr(facts, what) for what in ("ready", "later", "reserved", "waited_ms")
        }
        shards = [_shard_json(shard) for shard in facts.shards]
        left = [_shard_json(shard) for shard in facts.left_behind]
        output.show_json({"channel": name, **totals, "shards": shards, "left_behind": left})
        return
    rows = [
        (
            f"{shard.shard} (left)" if shard in facts.left_behind else shard.shard,
            shard.ready,
            shard.later,
            shard.reserved,
            shard.waited_ms,
            shard.lease.consumer if shard.lease else None,
        )
        for shard in (*facts.shards, *facts.left_behind)
    ]
    output.show_table(["shard", "ready", "later", "reserved", "waited_ms", "consumer"], rows)


def _shard_json(shard: ShardStats) -> dict[str, Any]:
    lease = shard.lease._asdict() if shard.lease else None
    return {**shard._asdict(), "lease": lease}


def shards(
    name: ChannelName,
    number: Annotated[
        int | None,
        typer.Argument(metavar="[NUMBER]", min=1, help="How many from now on.", show_default=False),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show how many shards there are; or change that, while the channel is in use.

    Waits for nobody: what cannot be done yet is done by consumers and the housekeeper.
    """
    with known_channel(store, name) as channel:
        if number is None:
            facts = channel.stats()
            left = facts.left_behind if facts else ()
            count, settled = len(facts.shards) if facts else 0, not left
            leases = sum(shard.lease is not None for shard in left)
        else:
            count, settled, leases = channel.reshard(number)
    if as_json:
        output.show_json({"channel": name, "shards": count, "settled": settled, "leases": leases})
    elif settled:
        output.say(f"{count} shards")
    else:
        output.say(f"{count} shards; members still move there, {leases} leases are waited for")


def delete(
    name: ChannelName, yes: Yes = False, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Remove a channel with all its members, for ever."""
    with known_channel(store, name) as channel:
        facts = channel.stats()
        if not yes and facts is not None:
            size = facts.ready + facts.later + facts.reserved
            typer.confirm(f"Delete {name} with {size} members?", abort=True, err=True)
        channel.delete()
    if as_json:
        output.show_json({"channel": name, "deleted": True})
    else:
        output.say(f"deleted {name}")
