"""The arguments of a command, read one after another; what does not fit is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from headwater.errors import InvalidInput
from headwater.serve.resp.commands import wrong_arity
from headwater.serve.resp.faults import WrongArguments, syntax_error

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
