"""Commands of timelines, on servers that were given a farm: TLINSERT, TLDELETE, TLSELECT."""

from __future__ import annotations

from typing import Any, Final

from headwater.kernel.declaring import Scope
from headwater.serve.listing import timeline_part
from headwater.serve.resp.arguments import Arguments, float_of
from headwater.serve.resp.commands import RespCommand, Words, wrong_arity
from headwater.serve.resp.door import RespSession
from headwater.serve.resp.replies import syntax_error
from headwater.timeline.records import Tuple


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
)  # fmt: skip
