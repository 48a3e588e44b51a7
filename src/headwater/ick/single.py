"""The operations of an Ick, without I/O: add, reserve, commit, exchange, stats, scan, delete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headwater.errors import NotAnIck
from headwater.ick.keys import ick_keys
from headwater.ick.limits import (
    SCAN_MEMBERS,
    Member,
    Scores,
    check_reserve,
    spell_members,
    spell_pairs,
)
from headwater.ick.replies import (
    ExchangeReply,
    Reply,
    ScanReply,
    facts_of,
    members_scanned,
    pairs_of,
)
from headwater.ick.types import Added, Listed, Place
from headwater.store.call import Argument, Call, Count, Operation
from headwater.store.faults import Refusal

PLACES: tuple[Place, Place] = ("pset", "cset")
_VERSION = "ick.v1"


class IckHandle:
    """An Ick as its operations see it: its three keys."""

    __slots__ = ("cset", "key", "pset")

    def __init__(self, name: str, one_server: bool) -> None:
        self.key, self.pset, self.cset = ick_keys(name, one_server)

    def call(
        self,
        function: str,
        args: Iterable[Argument] = (),
        *,
        read_only: bool = False,
        repeatable: bool = False,
        members: Count = 0,
    ) -> Operation[Any]:
        """Call a function on the Ick; raises NotAnIck when something else lies under its keys.

        ``members`` is how many that concerns, for instruments.
        """
        keys, words = (self.pset, self.cset), tuple(args)
        try:
            return (yield Call(function, self.key, words, read_only, repeatable, keys, members))
        except Refusal as refusal:
            part, found = refusal.words
            key = {"flag": self.key, "pset": self.pset, "cset": self.cset}[part]
            raise NotAnIck(key, found) from None


def add(ick: IckHandle, scores: Scores) -> Operation[Added]:
    """Mark members as dirty; one that is in the producer set takes the lower score."""
    args = spell_pairs(scores)
    # Sent twice, it does no more than make dirty again what was cleaned in between.
    reply = yield from ick.call("hw_ick_add", args, repeatable=True, members=len(args) // 2)
    return Added(*reply)


def exchange(
    ick: IckHandle, n: int, members: Iterable[Member], backwash: bool
) -> Operation[tuple[int, list[tuple[Member, float]]]]:
    """Commit, then reserve; return how many were committed, and what is reserved."""
    done = spell_members(members)
    args = (check_reserve(n), "1" if backwash else "0", *done)
    # A repeat of both could commit what the first reserved. Each alone may be sent again.
    repeatable = not (n and done)
    found = yield from ick.call(
        "hw_ick_exchange", args, repeatable=repeatable, members=_members_exchanged
    )
    reply = ExchangeReply(*found)
    return reply.committed, pairs_of(reply.rows)


def _members_exchanged(_: Call, reply: Reply) -> int:
    committed, rows = ExchangeReply(*reply)
    return committed + len(rows) // 2


def stats(ick: IckHandle) -> Operation[dict[str, Any] | None]:
    """Return how an Ick stands, by the names of redis-ick; None when there is no Ick."""
    reply = yield from ick.call("hw_ick_stats", read_only=True)
    if reply is None:
        return None
    facts = facts_of(reply)
    names = ("pset_min", "pset_max", "cset_min", "cset_max")
    scores = {name: float(facts[name]) for name in names if facts[name]}
    lowest = [scores[name] for name in ("pset_min", "cset_min") if name in scores]
    highest = [scores[name] for name in ("pset_max", "cset_max") if name in scores]
    if lowest:
        scores |= {"total_min": min(lowest), "total_max": max(highest)}
    return {
        "key": ick.key,
        "pset_key": ick.pset,
        "cset_key": ick.cset,
        "ver": _VERSION,
        "cset_size": facts["cset_size"],
        "pset_size": facts["pset_size"],
        "total_size": facts["cset_size"] + facts["pset_size"],
        **scores,
    }


def scan_page(ick: IckHandle, place: Place, cursor: str) -> Operation[tuple[list[Listed], str]]:
    """Read a page of one set, and the cursor of the next, which is '0' at the end."""
    args = (place, cursor, SCAN_MEMBERS)
    found = yield from ick.call("hw_ick_scan", args, read_only=True, members=members_scanned)
    reply = ScanReply(*found)
    return [Listed(*pair, place) for pair in pairs_of(reply.rows)], reply.cursor.decode()


def delete(ick: IckHandle) -> Operation[int]:
    """Remove an Ick; return how many keys there were, which is 0 when there was none."""
    gone: int = yield from ick.call("hw_ick_delete", repeatable=True)
    return gone
