"""Which keys under the name of a queue belong to it, and which are left over."""

from __future__ import annotations

import re
from typing import Final

from headwater.queue.keys import QUEUES, queue_key
from headwater.queue.queue_fields import head_command, queue_head
from headwater.store.scrubbing import (
    NOBODYS,
    YOUNG_US,
    Checks,
    Command,
    OwnedKey,
    Repair,
    ScrubLedger,
    check_registered,
    check_type,
    parts_of,
    read,
    report_orphan,
    shown,
)

# Keys that only a queue that was pushed to has.
_PUSHED: Final = (
    *(b":dead", b":bundles", b":damaged", b":failing", b":causes", b":producers", b":answers"),
)
_BY_PRIORITY = re.compile(rb":(ready|delayed|unacked|retry):(-?\d+)")
_KEYS = re.compile(rb":keys:\d+")
_EXPIRING = re.compile(rb":(?:box|dedupe):.*", re.DOTALL)
_BOX_MS: Final = 10_000


def check_queue_key(found: OwnedKey, ledger: ScrubLedger) -> Checks[None]:
    """Check one key under the name of a queue."""
    key, part = queue_key(found.name), found.part
    ledger.kind, ledger.name = "queue", found.name
    if kind := parts_of("queue", "K queue.key").get(part):
        right = yield from check_type(key, found.key, kind, ledger)
        if right and part == b"":
            yield from _check_known(key, found.name, ledger)
        elif right and part in _PUSHED:
            yield from _check_pushed(key, found, ledger)
    elif by_priority := _BY_PRIORITY.fullmatch(part):
        kind = "list" if by_priority[1] == b"ready" else "zset"
        if (yield from check_type(key, found.key, kind, ledger)):
            yield from _check_priority(key, found, by_priority[2].decode(), ledger)
    elif _KEYS.fullmatch(part):
        yield from check_type(key, found.key, "zset", ledger)
    elif _EXPIRING.fullmatch(part):
        yield from _check_expires(key, found, ledger)
    else:
        ledger.found(f"key {shown(found.key)}", "a part of a queue", "no such part", NOBODYS)


def _check_known(key: str, name: str, ledger: ScrubLedger) -> Checks[None]:
    values, now = yield read(ledger, key, head_command(key), ("TIME",))
    head = queue_head(values)
    # The newest number is the microsecond of the newest push, or later.
    if head is not None:
        age_us = int(now[0]) * 1_000_000 + int(now[1]) - head.counts["last"]
        if age_us > YOUNG_US:
            yield from check_registered(QUEUES, name, ledger)


def _check_pushed(key: str, found: OwnedKey, ledger: ScrubLedger) -> Checks[None]:
    counts: Command = ("HGET", key, "counts")
    there, value = yield read(ledger, key, ("EXISTS", found.key), counts)
    if there and value is None:
        report_orphan(key, found.key, "a queue that was pushed to", ((counts, None),), ledger)


def _check_priority(key: str, found: OwnedKey, priority: str, ledger: ScrubLedger) -> Checks[None]:
    """Check that a priority with messages is one that pops look at."""
    there, values = yield read(ledger, key, ("EXISTS", found.key), head_command(key))
    head = queue_head(values)
    if not there or (head is not None and priority in head.priorities):
        return
    if head is None and isinstance(values, list) and values[0] is None:
        counts: Command = ("HGET", key, "counts")
        report_orphan(key, found.key, "a queue that was pushed to", ((counts, None),), ledger)
        return
    if head is None:
        return
    known = sorted((*head.priorities, priority), key=int, reverse=True)
    text = "".join(f"{each}," for each in known)
    changes: tuple[Command, ...] = (("HSET", key, "priorities", text),)
    what = f"lets pops look at priority {priority}"
    repair = Repair(what, key, ((head_command(key), values),), changes)
    place = f"key {shown(found.key)}"
    ledger.found(place, "its priority among those of the queue", "not there", repair=repair)


def _check_expires(key: str, found: OwnedKey, ledger: ScrubLedger) -> Checks[None]:
    """Check that a temporary key expires."""
    expiry: Command = ("PTTL", found.key)
    (left_ms,) = yield read(ledger, key, expiry)
    if left_ms == -1:
        changes: tuple[Command, ...] = (("PEXPIRE", found.key, _BOX_MS),)
        repair = Repair("lets it expire", key, ((expiry, -1),), changes)
        ledger.found(f"key {shown(found.key)}", "a time to live", "none", repair=repair)
