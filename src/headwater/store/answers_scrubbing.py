"""What must be true of the answers that a stream or a queue remembers for its producers.

Each answer names offsets that were assigned, and each producer is listed with the time of its
latest write, so that it is forgotten eventually. See lua/shared/20-producers.lua.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from headwater.store.scrubbing import PAGE, Checks, Command, Repair, ScrubLedger, read, shown

ANSWERS: Final = 128
_SLOT = re.compile(rb"(.*)\0(\d+)", re.DOTALL)
_ANSWER = re.compile(rb"(\d+):(\d+):(\d+)(?::.*)?", re.DOTALL)


def check_answers(
    key: str, ledger: ScrubLedger, end: Command, end_of: Callable[[Any], int | None]
) -> Checks[None]:
    """Check all answers of an object; ``end`` reads the last number that it has assigned."""
    cursor: bytes | str = "0"
    while True:
        commands: tuple[Command, ...] = (
            end,
            ("HSCAN", f"{key}:answers", cursor, "COUNT", PAGE),
            ("ZCARD", f"{key}:producers"),
        )
        replies = yield read(ledger, key, *commands)
        if ledger.wrong_types(commands, replies):
            return
        last, (cursor, found) = end_of(replies[0]), replies[1]
        producers = []
        for name, value in zip(found[::2], found[1::2], strict=True):
            slot = _SLOT.fullmatch(name)
            if slot is None:
                producers.append(name)
                if not value.isdigit():
                    _report(ledger, name, "a sequence", value)
                continue
            answer = _ANSWER.fullmatch(value)
            if answer is None:
                _report(ledger, slot[1], "sequence:first:last", value)
                continue
            sequence, first, end_at = map(int, answer.groups())
            if sequence % ANSWERS != int(slot[2]):
                place = f"a sequence whose rest by {ANSWERS} is {int(slot[2])}"
                _report(ledger, slot[1], place, value)
            elif last is not None and (end_at > last or first > end_at + 1):
                _report(ledger, slot[1], f"numbers up to {last}, the last one given out", value)
        if producers:
            yield from _check_listed(key, producers, ledger)
        if cursor == b"0":
            return


def _report(ledger: ScrubLedger, producer: bytes, expected: str, found: bytes) -> None:
    name = shown(producer)
    cure = "a repeat of that write would get a wrong answer: let the producer take a new name"
    ledger.found(f"answer to producer {name!r}", expected, repr(found), cure)


def _check_listed(key: str, producers: list[bytes], ledger: ScrubLedger) -> Checks[None]:
    answers: Command = ("HMGET", f"{key}:answers", *producers)
    listed: Command = ("ZMSCORE", f"{key}:producers", *producers)
    sequences, times, (now, _) = yield read(ledger, key, answers, listed, ("TIME",))
    for producer, sequence, time in zip(producers, sequences, times, strict=True):
        if sequence is not None and time is None:
            seen: Command = ("ZSCORE", f"{key}:producers", producer)
            changes: tuple[Command, ...] = (
                ("ZADD", f"{key}:producers", int(now) * 1000, producer),
            )
            repair = Repair("lists it as of now", key, ((seen, None),), changes)
            name = shown(producer)
            ledger.found(
                f"producer {name!r}", "the time of its latest write", "none", repair=repair
            )
