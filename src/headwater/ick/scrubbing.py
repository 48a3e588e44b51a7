"""What must be true of Icks and of channels, and how it is checked while they are in use.

An Ick has its flag as soon as it has members. In a shard of a channel a member that is dirty has an
age, one that waits for a time has a score for then, one that is reserved has a generation; it is
never both dirty and waiting. See headwater/store/scrubbing.py for how checks work.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final, NamedTuple

from headwater.ick.keys import CHANNELS, channel_key, ick_keys, shard_key
from headwater.store.scrubbing import (
    PAGE,
    Checks,
    Command,
    KeyRules,
    OwnedKey,
    PartRule,
    ScrubLedger,
    Subject,
    check_registered,
    number,
    report_orphan,
    shown,
)

# ── Icks ──────────────────────────────────────────────────────────────────────────────────────────


_FLAG: Final = b"ick.v1"
_ICK_SET = re.compile(rb"(.+)/ick/\{\1\}/([pc])set", re.DOTALL)


def check_ick(name: str, ledger: ScrubLedger) -> Checks[None]:
    """Check an Ick; another key is left alone."""
    flag, pset, cset = ick_keys(name, one_server=True)
    subject = Subject(flag, ledger, (pset, cset))
    read_flag = ("GET", flag)
    sets = (("ZCARD", pset), ("ZCARD", cset))
    value, *sizes = yield subject.read(read_flag, *sets)
    if value != _FLAG and not any(isinstance(size, Exception) or size for size in sizes):
        return
    ledger.begin("ick", name)
    if (yield from subject.look(read_flag, *sets)) is None or value == _FLAG:
        return
    if value is None:
        what, change = "sets the flag", ("SET", flag, _FLAG)
        subject.mend("flag", _FLAG.decode(), "none", what, [(read_flag, None)], change)
    else:
        cure = "find out who wrote it: no client takes it for an Ick"
        subject.found("flag", _FLAG.decode(), shown(value), cure)


def ick_of(key: bytes) -> str | None:
    """Return the name of the Ick that a key is a set of, if it is one."""
    match = _ICK_SET.fullmatch(key)
    try:
        return match[1].decode() if match else None
    except UnicodeDecodeError:
        return None


def check_ick_key(key: bytes, name: str, ledger: ScrubLedger) -> Checks[None]:
    """Check the Ick that a key is a set of; once, though it has two of them."""
    if key.endswith(b"/cset"):
        other = key[: -len(b"cset")] + b"pset"
        (there,) = yield Subject(key, ledger).read(("EXISTS", other))
        if there:
            return
    yield from check_ick(name, ledger)


# ── Channels ──────────────────────────────────────────────────────────────────────────────────────


_SETS: Final = ("ready", "since", "later", "wish", "held")
# More shards than any channel may have: a higher number is not a number of shards.
_MOST_SHARDS: Final = 100_000
_LAYOUT: Final = ("epoch", "shards", "old_epoch", "old_shards")


def check_channel(name: str, ledger: ScrubLedger) -> Checks[None]:
    """Check a channel with all of its shards; it need not exist."""
    ledger.begin("channel", name)
    subject = Subject(channel_key(name), ledger)
    replies = yield from subject.look(("HMGET", channel_key(name), *_LAYOUT))
    if replies is None:
        return
    epoch, shards, old_epoch, old_shards = (number(value, -1) for value in replies[0])
    if epoch == -1 and shards == -1:
        return
    if epoch is None or epoch < 0 or shards is None or not 1 <= shards <= _MOST_SHARDS:
        said = f"epoch={replies[0][0]!r} shards={replies[0][1]!r}"
        cure = "restore it from a backup"
        subject.found("fields", "an epoch and a number of shards", said, cure)
        return
    layouts = [(epoch, shards)]
    if old_epoch is not None and old_shards is not None and old_epoch >= 0:
        layouts.append((old_epoch, old_shards))
    for each, count in layouts:
        for shard in range(count):
            yield from _check_shard(shard_key(name, each, shard), f"shard {shard}", ledger)


def _check_shard(shard: str, place: str, ledger: ScrubLedger) -> Checks[None]:
    subject = Subject(shard, ledger)
    replies = yield from subject.look(
        ("HMGET", shard, "token", "until", "generation"),
        *(("ZCARD", f"{shard}:{name}") for name in _SETS),
        ("HLEN", f"{shard}:made"),
    )
    if replies is None:
        return
    if any(number(value) is None for value in replies[0]):
        subject.found(place, "a lease of numbers", repr(replies[0]), "restore it from a backup")
        return
    sizes = dict(zip((*_SETS, "made"), replies[1:], strict=True))
    for home, twin in (("ready", "since"), ("later", "wish"), ("held", "made")):
        # Members of the twin only: there are some when it is larger, or when both are off.
        for name in (home, twin) if sizes[home] != sizes[twin] else (home,):
            visit = partial(_check_members, subject, shard, place, name)
            scan = "HSCAN" if name == "made" else "ZSCAN"
            yield from subject.walk(scan, f"{shard}:{name}", visit, count=PAGE // 2)


class _Member(NamedTuple):
    """Where a member is: its score in each set, and the generation in which it was reserved."""

    ready: bytes | None
    since: bytes | None
    later: bytes | None
    wish: bytes | None
    held: bytes | None
    made: bytes | None


def _check_members(
    subject: Subject, shard: str, place: str, name: str, page: list[bytes]
) -> Checks[None]:
    """Check each member of a set in all sets of the shard, as one step for each page."""
    for start in range(0, len(page), PAGE):
        members = page[start : start + PAGE : 2]
        scores: list[Command] = [("ZMSCORE", f"{shard}:{each}", *members) for each in _SETS]
        made: Command = ("HMGET", f"{shard}:made", *members)
        *facts, (seconds, _) = yield subject.read(*scores, made, ("TIME",))
        for member, *place_of in zip(members, *facts, strict=True):
            at = _Member(*place_of)
            fault = _fault_of(shard, member, at, name, int(seconds) * 1000)
            if fault is not None:
                expected, found, what, *changes = fault
                seen = [
                    (("HGET" if each == "made" else "ZSCORE", f"{shard}:{each}", member), score)
                    for each, score in at._asdict().items()
                ]
                where = f"{place}, member {shown(member)!r}"
                subject.mend(where, expected, found, what, seen, *changes)


def _fault_of(
    shard: str, member: bytes, at: _Member, name: str, time: int
) -> tuple[str, str, str, *tuple[Command, ...]] | None:
    """Return what is wrong with a member, once: by the set in which it was found.

    What was expected, what was found, what a repair does, and its changes.
    """

    def put(each: str, score: Any) -> Command:
        return ("ZADD", f"{shard}:{each}", "LT", score, member)

    def drop(each: str) -> Command:
        return ("HDEL" if each == "made" else "ZREM", f"{shard}:{each}", member)

    both = at.ready is not None and (at.later is not None or at.wish is not None)
    aged = put("since", time)
    if getattr(at, name) is None:
        return None
    if name == "ready" and both:
        kept = (put("ready", at.wish),) if at.wish is not None else ()
        changes = (*kept, *(() if at.since is not None else (aged,)), drop("later"), drop("wish"))
        return "dirty, or waiting for a time", "both", "makes it dirty", *changes
    if name == "ready" and at.since is None:
        what = "lets it count as dirty from now on"
        return "a time since when it is dirty", "none", what, aged
    if name == "since" and at.ready is None:
        return "dirty, as it has an age", "not dirty", "drops its age", drop("since")
    if name == "later" and at.wish is None and not both:
        what = "makes it dirty, with score 0"
        return "a score for when its time comes", "none", what, drop("later"), put("ready", 0), aged
    if name == "wish" and at.later is None and not both:
        return "a time before which it waits", "none", "lets it wait no longer", put("later", 0)
    if name == "held" and at.made is None:
        expected, back = "the generation in which it was reserved", put("ready", at.held)
        return expected, "none", "makes it dirty again", drop("held"), back, aged
    if name == "made" and at.held is None:
        expected = "reserved, as it has a generation"
        return expected, "not reserved", "drops its generation", drop("made")
    return None


# ── Keys ──────────────────────────────────────────────────────────────────────────────────────────
# Which keys under the name of a channel belong to it.


_SHARD = re.compile(r"(.+)/(\d+)/(\d+)", re.DOTALL)


def _check_shard_key(subject: Subject, owned: OwnedKey) -> Checks[None]:
    """Check a key of a shard: its channel has such a shard, or it is closed."""
    name = _SHARD.fullmatch(owned.name)
    if name is None:
        subject.nobodys(owned.key, SHARD_KEYS.noun, SHARD_KEYS.missing)
        return
    key = channel_key(name[1])
    (layout,) = yield Subject(key, subject.ledger).read(("HMGET", key, *_LAYOUT))
    if isinstance(layout, Exception):
        return
    for epoch, shards in (layout[:2], layout[2:]):
        if epoch == name[2].encode() and int(name[3]) < (number(shards) or 0):
            # A client that put something into a shard has registered the channel before.
            if owned.part:
                yield from check_registered(CHANNELS, name[1], subject.ledger)
            return
    # A shard that was left behind keeps its hash as a mark, for a week.
    closed: Command = ("HGET", owned.owner, "closed")
    there, mark = yield subject.read(("EXISTS", owned.key), closed)
    place = f"a shard of the channel {name[1]!r}"
    if there and owned.part in (b":ready", b":wish", b":held"):
        cure = "no consumer gets its members: add them to the channel again, then delete it"
        subject.found(f"key {shown(owned.key)}", place, "none", cure)
    elif there and (owned.part or mark is None):
        report_orphan(subject, owned.key, place, (closed, mark))


CHANNEL_KEYS: Final = KeyRules("a channel", rules=(PartRule("", "hash"),))
SHARD_KEYS: Final = KeyRules(
    "a part of a shard", ("ick", "S"), (PartRule(".*", check=_check_shard_key),)
)
