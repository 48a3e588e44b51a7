"""Which keys under the name of a stream belong to it, and which are left over."""

from __future__ import annotations

import re
from typing import Final

from headwater.log.keys import STREAMS, group_key, stream_key
from headwater.store.key_scrubbing import (
    NOBODYS,
    YOUNG_US,
    OwnedKey,
    check_registered,
    check_type,
    report_orphan,
)
from headwater.store.scrubbing import Checks, Command, Repair, ScrubLedger, number, read, shown

_TYPES: Final = {
    b"": "hash",
    b":tail": "stream",
    b":nodes": "hash",
    b":index": "zset",
    b":producers": "zset",
    b":answers": "hash",
    b":publishing": "hash",
    b":readers": "zset",
    b":stagings": "zset",
    b":seen": "zset",
    b":positions": "zset",
    b":deleted": "zset",
    b":groups": "zset",
}
# Keys that only a stream that was written has.
_WRITTEN: Final = (b":tail", b":nodes", b":index", b":producers", b":answers", b":publishing")
_GROUP_PARTS: Final = (
    *(b":pending", b":due", b":expired", b":waiters", b":served", b":members", b":dead"),
    b":origins",
    *(b":failing", b":causes", b":before", b":after", b":tails"),
    *(b":flying", b":tags", b":keys", b":buckets", b":kept"),
)
_DELETED = re.compile(rb":deleted:\d+(:publishing)?")
_GROUP = re.compile(rb":g:(\d+):(.*)", re.DOTALL)
_DAY_MS: Final = 24 * 3600 * 1000


def check_stream_key(found: OwnedKey, ledger: ScrubLedger) -> Checks[None]:
    """Check one key under the name of a stream."""
    key, part = stream_key(found.name), found.part
    ledger.kind, ledger.name = "stream", found.name
    if part == b":remade":
        # It exists only during one call.
        report_orphan(key, found.key, "nothing: it is left of a call", (), ledger)
    elif part in _TYPES:
        right = yield from check_type(key, found.key, _TYPES[part], ledger)
        if right and part == b"":
            yield from _check_known(key, found.name, ledger)
        elif right and part in _WRITTEN:
            created: Command = ("HGET", key, "created")
            there, age = yield read(ledger, key, ("EXISTS", found.key), created)
            if there and age is None:
                report_orphan(
                    key, found.key, "a stream that was written", ((created, None),), ledger
                )
    elif deleted := _DELETED.fullmatch(part):
        yield from check_type(key, found.key, "hash" if deleted[1] else "zset", ledger)
    elif part.startswith(b":staged:"):
        if (yield from check_type(key, found.key, "hash", ledger)):
            yield from _check_staged(key, found.key, part[len(b":staged:") :], ledger)
    elif part.startswith(b":publish:"):
        if (yield from check_type(key, found.key, "list", ledger)):
            publish: Command = ("HGET", f"{key}:publishing", part[len(b":publish:") :])
            there, state, freeing = yield read(
                ledger, key, ("EXISTS", found.key), publish, ("EXISTS", f"{key}:deleted")
            )
            # What belongs to a stream that was deleted is freed in steps.
            if there and state is None and not freeing:
                report_orphan(key, found.key, "an unfinished publish", ((publish, None),), ledger)
    elif group := _GROUP.fullmatch(part):
        yield from _check_group_key(key, found, int(group[1]), group[2], ledger)
    else:
        ledger.found(f"key {shown(found.key)}", "a part of a stream", "no such part", NOBODYS)


def _check_known(key: str, name: str, ledger: ScrubLedger) -> Checks[None]:
    created, now = yield read(ledger, key, ("HGET", key, "created"), ("TIME",))
    age_us = int(now[0]) * 1_000_000 + int(now[1]) - (number(created) or 0)
    if created is not None and age_us > YOUNG_US:
        yield from check_registered(STREAMS, name, ledger)


def _check_staged(key: str, staged: bytes, name: bytes, ledger: ScrubLedger) -> Checks[None]:
    """Check that what is staged expires, or belongs to a publish."""
    begun: Command = ("HGET", staged, "begun")
    expiry: Command = ("PTTL", staged)
    there, left_ms, producers, freeing = yield read(
        ledger, key, begun, expiry, ("HKEYS", f"{key}:publishing"), ("EXISTS", f"{key}:deleted")
    )
    if left_ms != -1 or freeing:
        return
    lists = [f"{key}:publish:".encode() + producer for producer in producers]
    seen: tuple[Command, ...] = (begun, expiry, *(("LPOS", each, name) for each in lists))
    replies = yield read(ledger, key, *seen)
    if replies[1] != -1 or any(place is not None for place in replies[2:]):
        return
    changes: tuple[Command, ...] = (("HDEL", staged, "begun"), ("PEXPIRE", staged, _DAY_MS))
    what = "lets it be published again, or expire in a day"
    repair = Repair(what, key, tuple(zip(seen, replies, strict=True)), changes)
    said = "none, and it does not expire" if there is not None else "it does not expire"
    ledger.found(f"staging {shown(name)!r}", "a publish that it belongs to", said, repair=repair)


def _check_group_key(
    key: str, found: OwnedKey, length: int, rest: bytes, ledger: ScrubLedger
) -> Checks[None]:
    try:
        name, part = rest[:length].decode(), rest[length:]
    except UnicodeDecodeError:
        name, part = "", b"?"
    group = group_key(key, name)
    waiter = part[len(b":box:") :] if part.startswith(b":box:") else None
    kind = "hash" if not part else "list" if waiter is not None else "zset"
    if part and waiter is None and part not in _GROUP_PARTS:
        ledger.found(f"key {shown(found.key)}", "a part of a group", "no such part", NOBODYS)
        return
    if not (yield from check_type(key, found.key, kind, ledger)):
        return
    listed: Command = ("ZSCORE", f"{key}:groups", name)
    fields: Command = ("HMGET", group, "next", "created", "era")
    replies = yield read(
        ledger,
        key,
        ("EXISTS", found.key),
        listed,
        fields,
        ("HGET", key, "era"),
        ("ZRANGE", f"{key}:deleted", 0, -1),
    )
    # A key of another type is reported where it is read.
    if not replies[0] or any(isinstance(reply, Exception) for reply in replies):
        return
    _, score, (at, created, era), now_era, eras = replies
    if score is not None:
        if waiter is not None:
            yield from _check_box(key, group, found.key, waiter, ledger)
        return
    if eras:
        # Groups of a stream that was deleted are freed in steps.
        yield from _check_deleted(key, found, name, eras, listed, ledger)
    elif at is not None and (era or b"") == (now_era or b""):
        if not part:
            changes: tuple[Command, ...] = (
                ("ZADD", f"{key}:positions", 0, name),
                ("ZADD", f"{key}:groups", number(created) or 0, name),
            )
            repair = Repair("lists the group again", key, ((listed, None),), changes)
            place = f"list of groups, {name!r}"
            ledger.found(place, "the group", "not listed", repair=repair)
    else:
        gone: tuple[tuple[Command, object], ...] = ((listed, None), (("HGET", group, "next"), at))
        report_orphan(key, found.key, f"the group {name!r}", gone, ledger)


def _check_deleted(
    key: str,
    found: OwnedKey,
    name: str,
    eras: list[bytes],
    listed: Command,
    ledger: ScrubLedger,
) -> Checks[None]:
    lists = [f"{key}:deleted:{shown(era)}" for era in eras]
    seen: tuple[Command, ...] = (listed, *(("ZSCORE", each, name) for each in lists))
    there, *places = yield read(ledger, key, ("EXISTS", found.key), *seen)
    if there and all(place is None for place in places):
        gone = tuple((command, None) for command in seen)
        report_orphan(key, found.key, f"the group {name!r}", gone, ledger)


def _check_box(
    key: str, group: str, box: bytes, waiter: bytes, ledger: ScrubLedger
) -> Checks[None]:
    """Check that a box will be emptied: by its owner, or by the call that takes it back."""
    seen: tuple[Command, ...] = (
        ("ZSCORE", f"{group}:served", waiter),
        ("ZSCORE", f"{group}:waiters", waiter),
        ("HGET", group, b"w:" + waiter),
    )
    there, handed, *owner = yield read(
        ledger, key, ("EXISTS", box), ("HGET", group, "handed"), *seen
    )
    noted = b" " + (handed or b"")
    if not there or any(fact is not None for fact in owner) or b" " + waiter + b":" in noted:
        return
    changes: tuple[Command, ...] = (("ZADD", f"{group}:served", 0, waiter),)
    what = "lets the group take back what is in it"
    repair = Repair(what, key, tuple(zip(seen, owner, strict=True)), changes)
    ledger.found(f"box {shown(waiter)}", "a member that looks into it", "none", repair=repair)
