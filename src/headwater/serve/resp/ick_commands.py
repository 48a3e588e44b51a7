"""Commands of dirty lists, by the names of redis-ick; the key is the same for both."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from headwater.ick.aio_ick import AsyncIck
from headwater.ick.keys import Member
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES
from headwater.serve.resp.arguments import Arguments, scores_of
from headwater.serve.resp.commands import RespCommand, Words
from headwater.serve.resp.door import RespSession


def _ick(session: RespSession, arguments: Arguments) -> AsyncIck:
    return session.door.client.ick(arguments.text())


async def ickadd(session: RespSession, words: Words) -> list[int]:
    """ICKADD: mark members as dirty."""
    arguments = Arguments(words)
    ick = _ick(session, arguments)
    return list(await ick.add(scores_of(arguments, "ickadd")))


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


def ickcommit(session: RespSession, words: Words) -> Awaitable[int]:
    """ICKCOMMIT: mark members as clean."""
    arguments = Arguments(words)
    return _ick(session, arguments).commit(*arguments.rest())


def ickstats(session: RespSession, words: Words) -> Awaitable[dict[str, Any] | None]:
    """ICKSTATS: return how large the sets are, or null."""
    return _ick(session, Arguments(words)).stats()


def ickdel(session: RespSession, words: Words) -> Awaitable[int]:
    """ICKDEL: remove a dirty list."""
    return _ick(session, Arguments(words)).delete()


def _flat(found: list[tuple[Member, float]]) -> list[Any]:
    return [part for pair in found for part in pair]


_I = "ick"
ICK_COMMANDS: Final = (
    RespCommand("ICKADD", -4, Scope.WRITE, -1, _I, "key score member [score member ...]",
                "Marks members as dirty; returns how many were new, and how many scores fell.",
                ickadd),
    RespCommand("ICKRESERVE", -3, Scope.WRITE, -1, _I, "key count [BACKWASH]",
                "Fills the consumer set up to a count, and returns it, no more once it has 4 MiB: "
                "member, score, ...",
                ickreserve),
    RespCommand("ICKCOMMIT", -3, Scope.WRITE, -1, _I, "key member [member ...]",
                "Marks members as clean; returns how many.", ickcommit),
    RespCommand("ICKEXCHANGE", -3, Scope.WRITE, -1, _I, "key count [BACKWASH] [member ...]",
                "Commits members, then reserves, in one step.", ickexchange),
    RespCommand("ICKSTATS", 2, Scope.READ, -1, _I, "key",
                "Returns how large the sets are, and between which scores; null without any.",
                ickstats),
    RespCommand("ICKDEL", 2, Scope.ADMIN, -1, _I, "key",
                "Removes a dirty list; returns how many keys there were.", ickdel,
                look=ickstats),
)  # fmt: skip
