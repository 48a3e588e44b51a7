"""Commands of dirty lists, channels, timed jobs and timelines."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Any, Final

from headwater.doors.catalogue import CHANNEL, ICK, TIMED_JOB
from headwater.ick.aio_ick import AsyncIckChannel
from headwater.ick.types import Batch, Reserved
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES
from headwater.serve.listing import timeline_part
from headwater.serve.resp.arguments import Arguments, float_of, int_of
from headwater.serve.resp.commands import RespCommand, Words, wrong_arity
from headwater.serve.resp.derived import commands_of
from headwater.serve.resp.door import RespSession
from headwater.serve.resp.replies import CommandRefused, syntax_error
from headwater.timeline.records import Tuple

ICK_COMMANDS: Final = commands_of(ICK)


# ── Channels ──────────────────────────────────────────────────────────────────────────────────────
# A *lease* is a text that names what was reserved: layout, shard, token, and for how many ms it is
# held. Each member comes with a receipt, which distinguishes this time from any other. Once another
# consumer has taken the shard over, neither changes anything.


_LEASE: Final = re.compile(rb"(\d{1,16}):(\d{1,4}):(\d{1,16}):(\d{1,16})")
_LEASE_MS: Final = 30_000


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


_C = "channel"
_MEMBERS = "receipt member [receipt member ...]"
CHANNEL_COMMANDS: Final = (
    *commands_of(CHANNEL),
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
)  # fmt: skip


# ── Timed commands ────────────────────────────────────────────────────────────────────────────────
# A change is made under the name of the token's holder.


TIMED_COMMANDS: Final = commands_of(TIMED_JOB)


# ── Timeline commands ─────────────────────────────────────────────────────────────────────────────
# Commands of timelines, on servers that were given a farm.


def _tuples(words: Words, name: str) -> list[Tuple]:
    flat = words[1:]
    if len(flat) % 3:
        raise wrong_arity(name)
    return [
        (key, float_of(score), member)
        for key, score, member in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    ]


async def tlinsert(session: RespSession, words: Words) -> int:
    """TLINSERT: insert members into timelines."""
    return (await session.door.farm.insert(_tuples(words, "tlinsert"))).applied


async def tldelete(session: RespSession, words: Words) -> int:
    """TLDELETE: delete members from timelines."""
    return (await session.door.farm.delete(_tuples(words, "tldelete"))).applied


async def tlselect(session: RespSession, words: Words) -> list[Any]:
    """TLSELECT: return members of a timeline, the newest first."""
    arguments = Arguments(words)
    key, offset, limit = arguments.take(), 0, 10
    places: dict[str, tuple[float, bytes]] = {}
    for option in arguments.options():
        match option:
            case "OFFSET":
                offset = arguments.number()
            case "LIMIT":
                limit = arguments.number()
            case "START" | "STOP":
                places[option.lower()] = (arguments.fraction(), arguments.take())
            case _:
                raise syntax_error()
    if places and offset:
        raise syntax_error()
    found = await timeline_part(
        session.door.farm, key, offset, limit, places.get("start"), places.get("stop")
    )
    return [part for record in found.records for part in (record.member, record.score)]


async def tlscore(session: RespSession, words: Words) -> list[Any] | None:
    """TLSCORE: return the newest operation on a member, or null."""
    _, key, member = words
    state = (await session.door.farm.score([(key, member)]))[key, member]
    return None if state is None else [state.score, int(not state.deleted)]


_TL = "timeline"
TIMELINE_COMMANDS: Final = (
    RespCommand("TLINSERT", -4, Scope.WRITE, 3, _TL,
                "key score member [key score member ...]",
                "Inserts members into timelines; returns how many changed something.", tlinsert),
    RespCommand("TLDELETE", -4, Scope.WRITE, 3, _TL,
                "key score member [key score member ...]",
                "Deletes members from timelines; returns how many changed something.", tldelete),
    RespCommand("TLSELECT", -2, Scope.READ, -1, _TL,
                "key [OFFSET offset] [LIMIT limit] [START score member] [STOP score member]",
                "Returns members, the newest first, no more once they have 4 MiB: member, score, "
                "...",
                tlselect),
    RespCommand("TLSCORE", 3, Scope.READ, -1, _TL, "key member",
                "Returns the newest operation on a member, [score, live], where live is 0 after a "
                "delete; null without any.",
                tlscore),
)  # fmt: skip
