"""Commands of dirty lists, channels, timed jobs and timelines."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Any, Final

from headwater.doors.catalogue import CHANNEL, ICK, TIMED_JOB
from headwater.errors import UnknownIck
from headwater.ick.aio_ick import AsyncIck, AsyncIckChannel
from headwater.ick.keys import Member
from headwater.ick.types import Batch, Reserved
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES
from headwater.serve.listing import timeline_part
from headwater.serve.resp.arguments import Arguments, float_of, int_of, text_of
from headwater.serve.resp.commands import RespCommand, Words, wrong_arity
from headwater.serve.resp.derived import commands_of, spelled_reply
from headwater.serve.resp.door import RespSession
from headwater.serve.resp.replies import CommandRefused, syntax_error
from headwater.timed import operating
from headwater.timeline.records import Tuple

# ── Ick commands ──────────────────────────────────────────────────────────────────────────────────


# ── Icks ──────────────────────────────────────────────────────────────────────────────────────────


def _ick(session: RespSession, arguments: Arguments) -> AsyncIck:
    return session.door.client.ick(arguments.text())


async def ickreserve(session: RespSession, words: Words) -> list[Any]:
    """ICKRESERVE: fill the consumer set and return it."""
    arguments = Arguments(words)
    ick, count = _ick(session, arguments), arguments.number()
    backwash = arguments.take_option("BACKWASH") is not None
    arguments.end()
    return _flat(await ick.reserve(count, backwash, max_bytes=LIST_BYTES))


async def ickexchange(session: RespSession, words: Words) -> list[Any]:
    """ICKEXCHANGE: commit members, then reserve."""
    arguments = Arguments(words)
    ick, count = _ick(session, arguments), arguments.number()
    backwash = arguments.take_option("BACKWASH") is not None
    return _flat(
        await ick.exchange(count, *arguments.rest(), backwash=backwash, max_bytes=LIST_BYTES)
    )


def ickstats(session: RespSession, words: Words) -> Awaitable[dict[str, Any] | None]:
    """ICKSTATS: return how large the sets are, or null."""
    return _ick(session, Arguments(words)).stats()


def _flat(pairs: list[tuple[Member, float]]) -> list[Any]:
    return [part for pair in pairs for part in pair]


_I = "ick"
ICK_COMMANDS: Final = (
    *commands_of(ICK, ickstats),
    RespCommand("ICKRESERVE", -3, Scope.WRITE, -1, _I, "key count [BACKWASH]",
                "Fills the consumer set up to a count, and returns it, no more once it has 4 MiB: "
                "member, score, ...",
                ickreserve),
    RespCommand("ICKEXCHANGE", -3, Scope.WRITE, -1, _I, "key count [BACKWASH] [member ...]",
                "Commits members, then reserves, in one step.", ickexchange),
    RespCommand("ICKSTATS", 2, Scope.READ, -1, _I, "key",
                "Returns how large the sets are, and between which scores; null without any.",
                ickstats),
)  # fmt: skip


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


_C = "channel"
_MEMBERS = "receipt member [receipt member ...]"
CHANNEL_COMMANDS: Final = (
    *commands_of(CHANNEL, chstats),
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
)  # fmt: skip


# ── Timed commands ────────────────────────────────────────────────────────────────────────────────
# Commands of timed jobs; a change is made under the name of the token's holder.


async def _look(session: RespSession, words: Words) -> Any:
    job = operating.info(text_of(words[1]))
    return spelled_reply(await session.door.client.store.run(job))


TIMED_COMMANDS: Final = commands_of(TIMED_JOB, _look)


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
