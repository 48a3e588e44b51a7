"""Which keys under the name of a channel belong to it, and how an Ick is known by its keys."""

from __future__ import annotations

import re
from typing import Final

from headwater.ick.keys import CHANNELS, channel_key
from headwater.ick.scrubbing import check_ick
from headwater.store.scrubbing import (
    NOBODYS,
    Checks,
    Command,
    OwnedKey,
    ScrubLedger,
    check_registered,
    check_type,
    number,
    parts_of,
    read,
    report_orphan,
    shown,
)

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
