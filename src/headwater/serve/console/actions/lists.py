"""Actions on dirty lists."""

from __future__ import annotations

from headwater.errors import InvalidInput, UnknownIck
from headwater.ick.types import ChannelStats
from headwater.kernel.declaring import Scope
from headwater.serve.console.actions.action import Action, cli_words, given
from headwater.serve.console.calls import PageCall
from headwater.serve.console.links import channel_link, ick_link
from headwater.serve.console.render import number
from headwater.serve.http.messages import path_part


async def _known(call: PageCall, name: str) -> ChannelStats:
    call.check(name)
    stats = await call.hw.ick_channel(name).stats()
    if stats is None:
        raise UnknownIck(name)
    return stats


async def reshard(call: PageCall) -> Action:
    """Change the number of shards of a channel."""
    name = given(call, "channel")
    shards = call.number("shards")
    if shards is None or not 1 <= shards <= 1024:
        raise InvalidInput("a channel has 1 to 1024 shards; give another number")
    stats = await _known(call, name)
    waiting, leases = stats.ready + stats.later, sum(one.lease is not None for one in stats.shards)
    if shards == len(stats.shards):
        bill = [f"The channel has {number(shards)} shards already; nothing changes."]
    else:
        bill = [
            f"The channel changes from {number(len(stats.shards))} to {number(shards)} shards.",
            f"{number(waiting)} waiting members move to their new shards while adds continue. "
            "No member is with two consumers.",
            f"It waits for {number(leases)} leases with {number(stats.reserved)} reserved members; "
            "until the last one ends, nothing is handed out.",
            "The counts of adds start again at zero.",
        ]
    return Action(
        title=f"Reshard {name}",
        scope=Scope.ADMIN,
        name=name,
        bill=bill,
        method="PUT",
        path=f"/v1/channels/{path_part(name)}/layout",
        body={"shards": shards},
        cli=cli_words("ick", "channel", "shards", name, shards),
        python=f"hw.ick_channel({name!r}).reshard({shards})",
        back=channel_link(name),
    )


async def delete_channel(call: PageCall) -> Action:
    """Delete a channel."""
    name = given(call, "channel")
    stats = await _known(call, name)
    return Action(
        title=f"Delete {name}",
        scope=Scope.ADMIN,
        name=name,
        bill=[
            f"This deletes the channel and all its members for good: {number(stats.ready)} ready, "
            f"{number(stats.later)} later, {number(stats.reserved)} reserved.",
            "Consumers that hold a batch of it cannot commit it any more.",
        ],
        method="DELETE",
        path=f"/v1/channels/{path_part(name)}",
        body=None,
        cli=cli_words("ick", "channel", "delete", name, "--yes"),
        python=f"hw.ick_channel({name!r}).delete()",
        back="/lists",
        careful=True,
    )


async def delete_ick(call: PageCall) -> Action:
    """Delete an Ick."""
    key = given(call, "key")
    call.check(key)
    facts = await call.hw.ick(key).stats()
    if facts is None:
        raise UnknownIck(key)
    return Action(
        title=f"Delete {key}",
        scope=Scope.ADMIN,
        name=key,
        bill=[
            f"This deletes the Ick and all its members for good: {number(facts['pset_size'])} "
            f"dirty, {number(facts['cset_size'])} reserved. Programs that use redis-ick lose them, "
            "too."
        ],
        method="DELETE",
        path=f"/v1/icks/{path_part(key)}",
        body=None,
        cli=cli_words("ick", "delete", key, "--yes"),
        python=f"hw.ick({key!r}).delete()",
        back=ick_link(key),
        careful=True,
    )
