"""Checks of unfinished publishes: everything that they have to move is there."""

from __future__ import annotations

import re

from headwater.store.scrubbing import PAGE, Checks, Command, ScrubLedger, read, shown

_PUBLISH = re.compile(rb"\d+:\d+:\d+:\d+:\d+(?::(\d+):([01])(?::[0-9a-f.]*)?)?")
_GONE = "publish it again under another sequence, from where it came from"


def check_publishes(key: str, ledger: ScrubLedger) -> Checks[None]:
    """Check each unfinished publish of a stream, and the stagings that it has to move."""
    cursor: bytes | str = "0"
    while True:
        commands: tuple[Command, ...] = (("HSCAN", f"{key}:publishing", cursor, "COUNT", PAGE),)
        replies = yield read(ledger, key, *commands)
        if ledger.wrong_types(commands, replies):
            return
        cursor, found = replies[0]
        for producer, state in zip(found[::2], found[1::2], strict=True):
            if not _PUBLISH.fullmatch(state):
                name = shown(producer)
                form = "sequence:first:last:index:time"
                ledger.found(f"publish of {name!r}", form, repr(state), _GONE)
            yield from _check_stagings(key, producer, ledger)
        if cursor == b"0":
            return


def _check_stagings(key: str, producer: bytes, ledger: ScrubLedger) -> Checks[None]:
    """Check that what a publish has still to move is there.

    The first ones may have been moved already. A publish that has not begun holds none.
    """
    names = f"{key}:publish:".encode() + producer
    start = 0
    while True:
        (page,) = yield read(ledger, key, ("LRANGE", names, start, start + PAGE - 1))
        for staging in [] if isinstance(page, Exception) else page:
            staged = f"{key}:staged:".encode() + staging
            state, listed, length, nodes = yield read(
                ledger,
                key,
                ("HGET", f"{key}:publishing", producer),
                ("LPOS", names, staging),
                ("LLEN", names),
                ("HMGET", staged, "n", "begun"),
            )
            found = _PUBLISH.fullmatch(state or b"")
            if listed is None or found is None or found[2] == b"0":
                continue
            moved = length - int(found[1]) if found[1] else 0
            if listed >= moved and (isinstance(nodes, Exception) or None in nodes):
                place, expected = (
                    f"publish of {shown(producer)!r}",
                    f"the staging {shown(staging)!r}",
                )
                ledger.found(place, expected, "none", _GONE)
        if isinstance(page, Exception) or len(page) < PAGE:
            return
        start += PAGE
