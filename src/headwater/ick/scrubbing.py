"""What must be true of Icks and of channels, and how it is checked while they are in use.

An Ick has its flag as soon as it has members. In a shard of a channel a member that is dirty has an
age, one that waits for a time has a score for then, one that is reserved has a generation; it is
never both dirty and waiting. See headwater/store/scrubbing.py for how checks work.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from headwater.ick.keys import CHANNELS, channel_key, ick_keys, shard_key
from headwater.store.scrubbing import (
    NOBODYS,
    PAGE,
    Checks,
    Command,
    OwnedKey,
    Repair,
    ScrubLedger,
    check_registered,
    check_type,
    number,
    parts_of,
    read,
    report_orphan,
    shown,
)

# ── Scrubbing ─────────────────────────────────────────────────────────────────────────────────────


_FLAG: Final = b"ick.v1"
# The sorted sets of a shard, each with the one that has the same members; then a hash that has.
_TWINS: Final = (("ready", "since"), ("later", "wish"), ("held", "made"))
_SETS: Final = ("ready", "since", "later", "wish", "held")
# More shards than any channel may have: a higher number is not a number of shards.
_MOST_SHARDS: Final = 100_000


def check_ick(name: str, ledger: ScrubLedger) -> Checks[None]:
    """Check an Ick; another key is left alone."""
    flag, pset, cset = ick_keys(name, one_server=True)
    commands: tuple[Command, ...] = (("GET", flag), ("ZCARD", pset), ("ZCARD", cset))
    replies = yield read(ledger, flag, *commands, also=(pset, cset))
    found, dirty, reserved = replies
    if found != _FLAG and not any(isinstance(r, Exception) or r for r in (dirty, reserved)):
        return
    ledger.begin("ick", name)
    if ledger.wrong_types(commands, replies) or found == _FLAG:
        return
    repair = None
    if found is None:
        changes: tuple[Command, ...] = (("SET", flag, _FLAG),)
        repair = Repair("sets the flag", flag, ((commands[0], None),), changes, (pset, cset))
    cure = "find out who wrote it: no client takes it for an Ick"
    ledger.found("flag", _FLAG.decode(), shown(found or b"none"), cure, repair)


def check_channel(name: str, ledger: ScrubLedger) -> Checks[None]:
    """Check a channel with all of its shards; it need not exist."""
    ledger.begin("channel", name)
    key = channel_key(name)
    fields = ("epoch", "shards", "old_epoch", "old_shards")
    commands: tuple[Command, ...] = (("HMGET", key, *fields),)
    replies = yield read(ledger, key, *commands)
    if ledger.wrong_types(commands, replies):
        return
    epoch, shards, old_epoch, old_shards = (number(value, -1) for value in replies[0])
    if epoch == -1 and shards == -1:
        return
    if epoch is None or epoch < 0 or shards is None or not 1 <= shards <= _MOST_SHARDS:
        said = f"epoch={replies[0][0]!r} shards={replies[0][1]!r}"
        ledger.found("fields", "an epoch and a number of shards", said, "restore it from a backup")
        return
    layouts = [(epoch, shards)]
    if old_epoch is not None and old_shards is not None and old_epoch >= 0:
        layouts.append((old_epoch, old_shards))
    for each, count in layouts:
        for shard in range(count):
            yield from _check_shard(shard_key(name, each, shard), f"shard {shard}", ledger)


def _check_shard(shard: str, place: str, ledger: ScrubLedger) -> Checks[None]:
    commands: tuple[Command, ...] = (
        ("HMGET", shard, "token", "until", "generation"),
        *(("ZCARD", f"{shard}:{name}") for name in _SETS),
        ("HLEN", f"{shard}:made"),
    )
    replies = yield read(ledger, shard, *commands)
    if ledger.wrong_types(commands, replies):
        return
    if any(number(value) is None for value in replies[0]):
        ledger.found(place, "a lease of numbers", repr(replies[0]), "restore it from a backup")
        return
    sizes = dict(zip((*_SETS, "made"), replies[1:], strict=True))
    for name, twin in _TWINS:
        yield from _check_members(shard, place, name, ledger)
        # Members of the twin only: there are some when it is larger, or when both are off.
        if sizes[name] != sizes[twin]:
            yield from _check_members(shard, place, twin, ledger)


class _Member(NamedTuple):
    """Where a member is: its score in each set, and the generation in which it was reserved."""

    ready: bytes | None
    since: bytes | None
    later: bytes | None
    wish: bytes | None
    held: bytes | None
    made: bytes | None


def _check_members(shard: str, place: str, name: str, ledger: ScrubLedger) -> Checks[None]:
    """Check each member of a set in all sets of the shard, as one step for each page."""
    cursor: bytes | str = "0"
    scan = "HSCAN" if name == "made" else "ZSCAN"
    while True:
        ((cursor, found),) = yield read(
            ledger, shard, (scan, f"{shard}:{name}", cursor, "COUNT", PAGE // 2)
        )
        for start in range(0, len(found), PAGE):
            members = found[start : start + PAGE : 2]
            *sets, made, now = yield read(
                ledger,
                shard,
                *(("ZMSCORE", f"{shard}:{each}", *members) for each in _SETS),
                ("HMGET", f"{shard}:made", *members),
                ("TIME",),
            )
            time = int(now[0]) * 1000
            for member, *facts in zip(members, *sets, made, strict=True):
                _check_member(shard, place, member, _Member(*facts), name, time, ledger)
        if cursor == b"0":
            return


def _check_member(
    shard: str,
    place: str,
    member: bytes,
    at: _Member,
    name: str,
    time: int,
    ledger: ScrubLedger,
) -> None:
    """Report what is wrong with a member, once: by the set in which it was found."""
    fault = _fault_of(shard, member, at, name, time)
    if fault is None:
        return
    expected, found, what, changes = fault
    seen: tuple[tuple[Command, Any], ...] = tuple(
        (("ZSCORE", f"{shard}:{each}", member), score)
        for each, score in zip(_SETS, at[:-1], strict=True)
    )
    seen += ((("HGET", f"{shard}:made", member), at.made),)
    repair = Repair(what, shard, seen, changes)
    ledger.found(f"{place}, member {shown(member)!r}", expected, found, repair=repair)


_Fault = tuple[str, str, str, tuple[Command, ...]]


def _fault_of(shard: str, member: bytes, at: _Member, name: str, time: int) -> _Fault | None:
    def put(each: str, score: Any) -> Command:
        return ("ZADD", f"{shard}:{each}", "LT", score, member)

    def drop(each: str) -> Command:
        return ("ZREM", f"{shard}:{each}", member)

    both = at.ready is not None and (at.later is not None or at.wish is not None)
    if name == "ready" and both:
        kept = (put("ready", at.wish),) if at.wish is not None else ()
        aged = () if at.since is not None else (put("since", time),)
        changes = (*kept, *aged, drop("later"), drop("wish"))
        return "dirty, or waiting for a time", "both", "makes it dirty", changes
    if name == "ready" and at.ready is not None and at.since is None:
        what = "lets it count as dirty from now on"
        return "a time since when it is dirty", "none", what, (put("since", time),)
    if name == "since" and at.since is not None and at.ready is None:
        return "dirty, as it has an age", "not dirty", "drops its age", (drop("since"),)
    if name == "later" and at.later is not None and at.wish is None and not both:
        changes = (drop("later"), put("ready", 0), put("since", time))
        return "a score for when its time comes", "none", "makes it dirty, with score 0", changes
    if name == "wish" and at.wish is not None and at.later is None and not both:
        return "a time before which it waits", "none", "lets it wait no longer", (put("later", 0),)
    if name == "held" and at.held is not None and at.made is None:
        changes = (drop("held"), put("ready", at.held), put("since", time))
        return "the generation in which it was reserved", "none", "makes it dirty again", changes
    if name == "made" and at.made is not None and at.held is None:
        forget: Command = ("HDEL", f"{shard}:made", member)
        return "reserved, as it has a generation", "not reserved", "drops its generation", (forget,)
    return None


# ── Key scrubbing ─────────────────────────────────────────────────────────────────────────────────
# Which keys under the name of a channel belong to it, and how an Ick is known by its keys.


_WITH_MEMBERS: Final = (b":ready", b":wish", b":held")
_SHARD = re.compile(r"(.+)/(\d+)/(\d+)", re.DOTALL)
_ICK_SET = re.compile(rb"(.+)/ick/\{\1\}/([pc])set", re.DOTALL)


def ick_of(key: bytes) -> str | None:
    """Return the name of the Ick that a key is a set of, if it is one."""
    found = _ICK_SET.fullmatch(key)
    try:
        return found[1].decode() if found else None
    except UnicodeDecodeError:
        return None


def check_ick_key(key: bytes, name: str, ledger: ScrubLedger) -> Checks[None]:
    """Check the Ick that a key is a set of; once, though it has two of them."""
    if key.endswith(b"/cset"):
        (other,) = yield read(ledger, key, ("EXISTS", key[: -len(b"cset")] + b"pset"))
        if other:
            return
    yield from check_ick(name, ledger)


def check_channel_key(found: OwnedKey, ledger: ScrubLedger) -> Checks[None]:
    """Check the key of a channel's layout."""
    key = channel_key(found.name)
    ledger.kind, ledger.name = "channel", found.name
    if found.part:
        ledger.found(f"key {shown(found.key)}", "a channel", "no such part", NOBODYS)
    else:
        yield from check_type(key, found.key, "hash", ledger)


def check_shard_key(found: OwnedKey, ledger: ScrubLedger) -> Checks[None]:
    """Check a key of a shard: its channel has such a shard, or it is closed."""
    name = _SHARD.fullmatch(found.name)
    ledger.kind, ledger.name = "channel", name[1] if name else found.name
    kind = parts_of("ick", "S").get(found.part)
    if name is None or kind is None:
        ledger.found(f"key {shown(found.key)}", "a part of a shard", "no such part", NOBODYS)
        return
    shard = f"hw:cs:{{{found.name}}}"
    if not (yield from check_type(shard, found.key, kind, ledger)):
        return
    key = channel_key(name[1])
    (layout,) = yield read(
        ledger, key, ("HMGET", key, "epoch", "shards", "old_epoch", "old_shards")
    )
    if isinstance(layout, Exception):
        return
    for epoch, shards in (layout[:2], layout[2:]):
        if epoch == name[2].encode() and int(name[3]) < (number(shards) or 0):
            # A client that put something into a shard has registered the channel before.
            if found.part:
                yield from check_registered(CHANNELS, name[1], ledger)
            return
    # A shard that was left behind keeps its hash as a mark, for a week.
    closed: Command = ("HGET", shard, "closed")
    there, mark = yield read(ledger, shard, ("EXISTS", found.key), closed)
    place = f"a shard of the channel {name[1]!r}"
    if there and found.part in _WITH_MEMBERS:
        cure = "no consumer gets its members: add them to the channel again, then delete it"
        ledger.found(f"key {shown(found.key)}", place, "none", cure)
    elif there and (found.part or mark is None):
        report_orphan(shard, found.key, place, ((closed, mark),), ledger)
