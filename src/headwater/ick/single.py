"""The operations of an Ick, without I/O: add, reserve, commit, exchange, stats, scan, delete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from headwater.errors import NotAnIck
from headwater.ick.keys import (
    SCAN_MEMBERS,
    STEP_MEMBERS,
    Member,
    Scores,
    check_reserve,
    first_members,
    ick_keys,
    spell_members,
    spell_pairs,
    steps_of,
)
from headwater.ick.replies import (
    ExchangeReply,
    Reply,
    ScanReply,
    facts_of,
    members_scanned,
    pairs_of,
)
from headwater.ick.types import Added, IckStats, Listed, Place
from headwater.kernel.headers import check_max_bytes
from headwater.kernel.inputs import refuse_own_name
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
        """Call a function on the Ick; raises NotAnIck when something else is stored under its keys.

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
    refuse_own_name(ick.key, "dirty list")
    words = spell_pairs(scores)
    new = lowered = 0
    # A repeat only makes members dirty again that were cleaned in between.
    for part in steps_of(words, 2) or [words]:
        count = len(part) // 2
        reply = yield from ick.call("hw_ick_add", part, repeatable=True, members=count)
        added = Added(*reply)
        new, lowered = new + added.new, lowered + added.lowered
    return Added(new, lowered)


def exchange(
    ick: IckHandle,
    n: int,
    members: Iterable[Member],
    backwash: bool,
    max_bytes: int | None = None,
) -> Operation[tuple[int, list[tuple[Member, float]]]]:
    """Commit, then reserve; return how many were committed, and what is reserved.

    With ``max_bytes``, no more is returned once the members have as many; the rest is reserved.
    """
    check_reserve(n)
    check_max_bytes(max_bytes)
    *before, done = steps_of(spell_members(members), 1) or [[]]
    committed = 0
    for part in before:
        reply = yield from _exchange(ick, (0, "0", *part), repeatable=True)
        committed += reply.committed
    # A repeat of both could commit what the first reserved. Each alone may be sent again.
    args = (n, "1" if backwash else "0", *done)
    reply = yield from _exchange(ick, args, repeatable=not (n and done))
    committed += reply.committed
    if reply.more:
        found = yield from _reserve_in_steps(ick, n, backwash, max_bytes)
    else:
        found = pairs_of(reply.rows)
    return committed, first_members(found, _size_of, max_bytes)


def _size_of(pair: tuple[Member, float]) -> int:
    return len(pair[0])


def _exchange(
    ick: IckHandle, args: tuple[Argument, ...], repeatable: bool
) -> Operation[ExchangeReply]:
    found = yield from ick.call(
        "hw_ick_exchange", args, repeatable=repeatable, members=_members_exchanged
    )
    return ExchangeReply(*found)


def _reserve_in_steps(
    ick: IckHandle, n: int, backwash: bool, max_bytes: int | None
) -> Operation[list[tuple[Member, float]]]:
    """Reserve more members than one call does. Only its one consumer changes the consumer set."""
    for most in ([""] if backwash else []) + ([n] if n else []):
        while (yield from ick.call("hw_ick_fold", (most,), repeatable=True)):
            pass
    found: list[tuple[Member, float]] = []
    while len(found) < n:
        args = (len(found), min(n - len(found), STEP_MEMBERS))
        rows = yield from ick.call("hw_ick_page", args, read_only=True, members=_members_on_page)
        found += pairs_of(rows)
        if not rows or (max_bytes and sum(map(_size_of, found)) >= max_bytes):
            break
    return found


def _members_on_page(_: Call, reply: Reply) -> int:
    return len(reply) // 2


def _members_exchanged(_: Call, reply: Reply) -> int:
    found = ExchangeReply(*reply)
    return found.committed + len(found.rows) // 2


def stats(ick: IckHandle) -> Operation[IckStats | None]:
    """Return the state of an Ick, by the names of redis-ick; None when there is no Ick."""
    reply = yield from ick.call("hw_ick_stats", read_only=True)
    if reply is None:
        return None
    facts = facts_of(reply)
    names = ("pset_min", "pset_max", "cset_min", "cset_max")
    scores = {name: float(facts[name]) for name in names if facts[name]}
    if scores:
        scores |= {"total_min": min(scores.values()), "total_max": max(scores.values())}
    stats = {
        "key": ick.key,
        "pset_key": ick.pset,
        "cset_key": ick.cset,
        "ver": _VERSION,
        "cset_size": facts["cset_size"],
        "pset_size": facts["pset_size"],
        "total_size": facts["cset_size"] + facts["pset_size"],
        **scores,
    }
    return cast(IckStats, stats)


def scan_page(
    ick: IckHandle, place: Place, cursor: str, count: int = SCAN_MEMBERS
) -> Operation[tuple[list[Listed], str]]:
    """Read a page of one set, and the cursor of the next, which is '0' at the end."""
    args = (place, cursor, count)
    found = yield from ick.call("hw_ick_scan", args, read_only=True, members=members_scanned)
    reply = ScanReply(*found)
    return [Listed(*pair, place) for pair in pairs_of(reply.rows)], reply.cursor.decode()


def delete(ick: IckHandle) -> Operation[int]:
    """Remove an Ick; return how many keys there were, which is 0 when there was none."""
    gone: int = yield from ick.call("hw_ick_delete", repeatable=True)
    return gone
