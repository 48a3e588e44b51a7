"""The arguments of a command, read one after another; what does not fit is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headwater.errors import InvalidInput
from headwater.log.handles import Start
from headwater.log.keys import MAX_TAG_BYTES
from headwater.serve.batching import Entries
from headwater.serve.resp.commands import Words, wrong_arity
from headwater.serve.resp.replies import WrongArguments, syntax_error

_MOST_DIGITS = 20


class Arguments:
    """The arguments behind the name of a command.

    Words that are options may be spelled in any case.
    """

    __slots__ = ("_at", "_words")

    def __init__(self, words: Sequence[bytes]) -> None:
        self._words = words
        self._at = 1

    def __bool__(self) -> bool:
        return self._at < len(self._words)

    def take(self) -> bytes:
        """Return the next argument as it is."""
        if self._at >= len(self._words):
            raise syntax_error()
        self._at += 1
        return self._words[self._at - 1]

    def rest(self) -> Sequence[bytes]:
        """Return all arguments that are left."""
        found = self._words[self._at :]
        self._at = len(self._words)
        return found

    def text(self) -> str:
        """Return the next argument as text."""
        return text_of(self.take())

    def number(self) -> int:
        """Return the next argument as a whole number."""
        return int_of(self.take())

    def fraction(self) -> float:
        """Return the next argument as a number."""
        return float_of(self.take())

    def block_ms(self) -> float:
        """Return for how long to wait; 0 is forever, as in Redis."""
        found = self.number()
        if found < 0:
            raise WrongArguments("timeout is negative")
        return found or math.inf

    def options(self) -> Iterator[str]:
        """Yield the next option in capitals, as long as there is one."""
        while self:
            yield self.take().decode("ascii", "replace").upper()

    def take_option(self, *names: str) -> str | None:
        """Take the next argument if it is one of these options, and return it in capitals."""
        if self and self._words[self._at].decode("ascii", "replace").upper() in names:
            return self.take().decode().upper()
        return None

    def pairs(self) -> dict[str, bytes]:
        """Return as many names and values as the next argument says."""
        count = self.number()
        if count < 0:
            raise syntax_error()
        return {self.text(): self.take() for _ in range(count)}

    def spans(self) -> list[tuple[int, int]]:
        """Return all arguments that are left as ranges: an offset, or start-end."""
        return [span_of(word) for word in self.rest()]

    def end(self) -> None:
        """Refuse what is left."""
        if self:
            raise syntax_error()


def text_of(word: bytes) -> str:
    """Return an argument as text; raises InvalidInput when it is not UTF-8."""
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise InvalidInput(
            f"{word[:100]!r} is not UTF-8; names and tags are text, only values are any bytes"
        ) from None


def int_of(word: bytes) -> int:
    """Return an argument as a whole number."""
    digits = word[1:] if word[:1] == b"-" else word
    if not digits.isdigit() or len(word) > _MOST_DIGITS:
        raise WrongArguments("value is not an integer or out of range")
    return int(word)


def float_of(word: bytes) -> float:
    """Return an argument as a number."""
    try:
        found = float(word)
    except ValueError:
        raise WrongArguments("value is not a valid float") from None
    if math.isnan(found) or b"_" in word:
        raise WrongArguments("value is not a valid float")
    return found


def span_of(word: bytes) -> tuple[int, int]:
    """Return an argument as a range: an offset, or start-end."""
    first, dash, last = word.partition(b"-")
    start = int_of(first)
    return start, int_of(last) if dash else start


def scores_of(flat: Sequence[bytes], command: str) -> dict[bytes, float]:
    """Return scores and members, in turn, as members with the lowest score of each."""
    if not flat or len(flat) % 2:
        raise wrong_arity(command)
    lowest: dict[bytes, float] = {}
    for spelled, member in zip(flat[::2], flat[1::2], strict=True):
        score = float_of(spelled)
        lowest[member] = min(score, lowest.get(member, score))
    return lowest


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
        if option in _READ_FLAGS:
            found[_READ_FLAGS[option]] = True
            continue
        match option:
            case "BLOCK":
                found["block_ms"] = arguments.block_ms()
            case "GROUP":
                found["group"] = arguments.text()
            case "RETRY":
                found["retry_ms"] = arguments.number()
                # 0 means never, as there is no other way to write that.
                found["expire_ms"] = arguments.number() or None
            case "START":
                found["start"] = start_of(arguments.take())
            case "MAXPENDING":
                found["max_pending"] = arguments.number()
            case _:
                raise syntax_error()
    return found


_READ_FLAGS: Final = {
    "WITHINFO": "with_info",
    "WITHATTEMPT": "with_attempt",
    "WITHHEADERS": "with_headers",
    "DEADLETTERS": "dead_letters",
    "ORDERED": "ordered",
}
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


class WriteOptions(NamedTuple):
    """Entries of this many bytes for a stream or a topic, and how they are written."""

    name: str
    entries: Entries
    size: int
    backlog: int | None = None
    producer: str | None = None
    sequence: int | None = None

    @property
    def alone(self) -> bool:
        """Whether these may be written together with those of others."""
        return self.backlog is None and self.producer is None


def write_options(words: Words) -> WriteOptions:
    """Read the arguments of a TWRITE or a TPWRITE; raises CommandRefused."""
    if len(words) == 4:
        tag, value = words[2], words[3]
        return WriteOptions(text_of(words[1]), [(_tag_of(tag), value)], len(tag) + len(value))
    arguments = Arguments(words)
    name = arguments.text()
    backlog = producer = sequence = None
    headers: dict[str, bytes] = {}
    for option in arguments.options():
        if option == "BACKLOG":
            backlog = arguments.number()
        elif option == "PRODUCER":
            producer, sequence = arguments.text(), arguments.number()
        elif option == "HEADERS":
            headers = arguments.pairs()
        elif option == "ENTRIES":
            break
        else:
            raise syntax_error()
    flat = arguments.rest()
    if not flat or len(flat) % 2:
        raise wrong_arity(words[0].decode("ascii", "replace"))
    size = sum(map(len, flat))
    entries: Entries = [
        (_tag_of(tag), value) for tag, value in zip(flat[::2], flat[1::2], strict=True)
    ]
    if headers:
        entries = [(*entry, headers) for entry in entries]
        size += len(entries) * sum(len(name) + len(value) for name, value in headers.items())
    return WriteOptions(name, entries, size, backlog, producer, sequence)


def _tag_of(tag: bytes) -> str:
    if len(tag) > MAX_TAG_BYTES:
        raise InvalidInput(f"a tag may have {MAX_TAG_BYTES} bytes, not {len(tag)}; make it smaller")
    return text_of(tag)
