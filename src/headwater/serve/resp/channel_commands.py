"""Commands of channels: dirty lists for many consumers, leased by shard and fenced.

A *lease* is a text that names what was reserved: layout, shard, token, and for how many ms it is
held. Each member comes with a receipt, which distinguishes this time from any other. Once another
consumer has taken the shard over, neither changes anything.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Any, Final

from headwater.errors import UnknownIck
from headwater.ick.aio_ick import AsyncIckChannel
from headwater.ick.types import Batch, Reserved
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES
from headwater.serve.resp.arguments import Arguments, int_of, scores_of, text_of
from headwater.serve.resp.commands import RespCommand, Words, wrong_arity
from headwater.serve.resp.door import RespSession
from headwater.serve.resp.replies import CommandRefused, syntax_error

_LEASE: Final = re.compile(rb"(\d{1,16}):(\d{1,4}):(\d{1,16}):(\d{1,16})")
_LEASE_MS: Final = 30_000


async def chadd(session: RespSession, words: Words) -> list[int]:
    """CHADD: mark members as dirty."""
    arguments = Arguments(words)
    channel = session.door.client.ick_channel(arguments.text())
    not_before = arguments.number() if arguments.take_option("NOTBEFORE") else None
    return list(await channel.add(scores_of(arguments, "chadd"), not_before=not_before))


async def chreserve(session: RespSession, words: Words) -> list[Any] | None:
    """CHRESERVE: lease a shard and take members of it."""
    arguments = Arguments(words)
    name, consumer, count = arguments.text(), arguments.text(), arguments.number()
    retry_ms, shards = _LEASE_MS, None
    for option in arguments.options():
        if option == "RETRY":
            retry_ms = arguments.number()
        elif option == "SHARDS":
            shards = arguments.number()
        else:
            raise syntax_error()
    channel = session.door.client.ick_channel(name, shards, consumer=consumer, ack_ms=retry_ms)
    batch = await channel.reserve(count, max_bytes=LIST_BYTES)
    if not batch:
        return None
    lease = f"{batch.epoch}:{batch.shard}:{batch.token}:{retry_ms}"
    rows = [[row.member, row.score, str(row.generation)] for row in batch]
    return [lease, batch.until_ms, rows]


def _held(session: RespSession, arguments: Arguments) -> tuple[AsyncIckChannel, Batch]:
    """Return the channel of a lease, and the batch that it names, without its members."""
    name, lease = arguments.text(), _LEASE.fullmatch(arguments.take())
    if lease is None:
        raise CommandRefused("that is no lease; give the one that CHRESERVE returned")
    epoch, shard, token, lease_ms = map(int, lease.groups())
    channel = session.door.client.ick_channel(name, ack_ms=lease_ms)
    return channel, Batch(name, epoch, shard, token)


def _with_members(batch: Batch, flat: Words, command: str) -> Batch:
    """Return a batch with the receipts and members that a client gives back."""
    if not flat or len(flat) % 2:
        raise wrong_arity(command)
    pairs = zip(flat[::2], flat[1::2], strict=True)
    rows = tuple(Reserved(member, 0.0, int_of(receipt)) for receipt, member in pairs)
    return Batch(batch.channel, batch.epoch, batch.shard, batch.token, 0, rows)


def chcommit(session: RespSession, words: Words) -> Awaitable[int]:
    """CHCOMMIT: mark members as clean."""
    arguments = Arguments(words)
    channel, batch = _held(session, arguments)
    return channel.commit(_with_members(batch, arguments.rest(), "chcommit"))


def chrelease(session: RespSession, words: Words) -> Awaitable[int]:
    """CHRELEASE: give members back undone."""
    arguments = Arguments(words)
    channel, batch = _held(session, arguments)
    delay_ms = arguments.number() if arguments.take_option("DELAY") else 0
    return channel.release(_with_members(batch, arguments.rest(), "chrelease"), delay_ms=delay_ms)


def chrenew(session: RespSession, words: Words) -> Awaitable[int]:
    """CHRENEW: hold what was reserved for longer."""
    arguments = Arguments(words)
    channel, batch = _held(session, arguments)
    retry_ms = arguments.number() if arguments.take_option("RETRY") else None
    arguments.end()
    return channel.renew(batch, ack_ms=retry_ms)


async def chstats(session: RespSession, words: Words) -> dict[str, Any] | None:
    """CHSTATS: return how a channel stands, or null."""
    found = await session.door.client.ick_channel(text_of(words[1])).stats()
    if found is None:
        return None
    totals = ("ready", "later", "reserved", "waited_ms", "added", "entered")
    return {
        "name": found.name,
        **{name.replace("_", "-"): getattr(found, name) for name in totals},
        "shards": [_shard(one) for one in found.shards],
        "left-behind": [_shard(one) for one in found.left_behind],
    }


def _shard(stats: Any) -> dict[str, Any]:
    facts = stats._asdict()
    lease = facts.pop("lease")
    shown = {name.replace("_", "-"): value for name, value in facts.items()}
    if lease is not None:
        shown |= {"consumer": lease.consumer, "token": lease.token, "left-ms": lease.left_ms}
    return shown


async def chshards(session: RespSession, words: Words) -> dict[str, Any]:
    """CHSHARDS: change how many shards a channel has."""
    channel = session.door.client.ick_channel(text_of(words[1]))
    if await channel.stats() is None:
        raise UnknownIck(channel.name)
    return (await channel.reshard(int_of(words[2])))._asdict()


async def chdel(session: RespSession, words: Words) -> int:
    """CHDEL: remove a channel."""
    return int(await session.door.client.ick_channel(text_of(words[1])).delete())


_C = "channel"
_MEMBERS = "receipt member [receipt member ...]"
CHANNEL_COMMANDS: Final = (
    RespCommand("CHADD", -4, Scope.WRITE, -1, _C,
                "key [NOTBEFORE unix-ms] score member [score member ...]",
                "Marks members as dirty; returns how many were new, and how many scores fell.",
                chadd),
    RespCommand("CHRESERVE", -4, Scope.WRITE, -1, _C,
                "key consumer count [RETRY retry-ms] [SHARDS n]",
                "Leases a shard that has something, and takes members of it, no more once they "
                "have 4 MiB: [lease, until-ms, [[member, score, receipt], ...]]; null when there "
                "is nothing.", chreserve),
    RespCommand("CHCOMMIT", -5, Scope.WRITE, -1, _C, f"key lease {_MEMBERS}",
                "Marks members as clean; returns how many are so, and not dirty again.", chcommit),
    RespCommand("CHRELEASE", -5, Scope.WRITE, -1, _C,
                f"key lease [DELAY milliseconds] {_MEMBERS}",
                "Releases members that were not handled; returns how many.", chrelease),
    RespCommand("CHRENEW", -3, Scope.WRITE, -1, _C, "key lease [RETRY retry-ms]",
                "Renews a lease, for as long as it was given or for another time; returns until "
                "when.", chrenew),
    RespCommand("CHSTATS", 2, Scope.READ, -1, _C, "key",
                "Returns the state of a channel and its shards; null without one.", chstats),
    RespCommand("CHSHARDS", 3, Scope.ADMIN, -1, _C, "key n",
                "Changes how many shards a channel has, while it is in use.", chshards,
                look=chstats),
    RespCommand("CHDEL", 2, Scope.ADMIN, -1, _C, "key",
                "Removes a channel with all its members; returns whether there was one.", chdel,
                look=chstats),
)  # fmt: skip
