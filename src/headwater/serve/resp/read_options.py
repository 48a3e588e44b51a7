"""What a TREAD or a TPREAD asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from headwater.log.handles import Start
from headwater.serve.resp.arguments import Arguments, int_of
from headwater.serve.resp.commands import Words
from headwater.serve.resp.faults import syntax_error


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What is asked for; a TPREAD has no offset."""

    stream: str
    offset: int
    count: int
    block_ms: float = 0
    with_info: bool = False
    with_attempt: bool = False
    with_headers: bool = False
    group: str | None = None
    retry_ms: int | None = None
    expire_ms: int | None = None
    start: Start = "first"
    max_pending: int | None = None
    dead_letters: bool | None = None
    ordered: bool = False


def read_options(words: Words) -> ReadOptions:
    """Read the arguments of a TREAD; raises CommandRefused."""
    arguments = Arguments(words)
    name, offset, count = arguments.text(), arguments.number(), arguments.number()
    found = _options(arguments)
    if "group" not in found and found.keys() & _OF_GROUPS:
        raise syntax_error()
    return ReadOptions(name, offset, count, **found)


def topic_read_options(words: Words) -> ReadOptions:
    """Read the arguments of a TPREAD; raises CommandRefused."""
    arguments = Arguments(words)
    name, group, count = arguments.text(), arguments.text(), arguments.number()
    found = _options(arguments)
    if found.keys() & {"group", "with_info"}:
        raise syntax_error()
    return ReadOptions(name, 0, count, group=group, **found)


def _options(arguments: Arguments) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for option in arguments.options():
        match option:
            case "BLOCK":
                found["block_ms"] = arguments.block_ms()
            case "GROUP":
                found["group"] = arguments.text()
            case "RETRY":
                found["retry_ms"] = arguments.number()
                # 0 means never, as there is no other way to write that.
                found["expire_ms"] = arguments.number() or None
            case "WITHINFO":
                found["with_info"] = True
            case "WITHATTEMPT":
                found["with_attempt"] = True
            case "WITHHEADERS":
                found["with_headers"] = True
            case "START":
                found["start"] = start_of(arguments.take())
            case "MAXPENDING":
                found["max_pending"] = arguments.number()
            case "DEADLETTERS":
                found["dead_letters"] = True
            case "ORDERED":
                found["ordered"] = True
            case _:
                raise syntax_error()
    return found


_OF_GROUPS: Final = {
    *("retry_ms", "start", "max_pending", "dead_letters", "ordered", "with_attempt"),
}


def start_of(word: bytes) -> Start:
    """Return where a group starts or goes: FIRST, LAST or an offset."""
    match word.upper():
        case b"FIRST":
            return "first"
        case b"LAST":
            return "last"
        case _:
            return int_of(word)
