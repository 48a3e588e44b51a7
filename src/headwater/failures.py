"""Failed attempts: what a consumer reports of one, and what a dead letter says of the last one.

An error is stored by its type and its text, each cut at a length that is stated here. It is sent
with a report of a failure only, so that messages which succeed cost nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Param

# Characters of an error that are kept; what is longer ends in "…".
MAX_TYPE: Final = 100
MAX_TEXT: Final = 1000
# What differs between errors of one kind: numbers, addresses of memory, ids.
_VARYING: Final = re.compile(r"0x[0-9a-f]+|\b(?=[a-f-]*\d)[0-9a-f][0-9a-f-]{7,}\b|\d+", re.I)
_PATTERN_CHARS: Final = 120


class Cause(NamedTuple):
    """Why a message failed for the last time: the type of the error, and what it said.

    The type is empty where only a text was reported.
    """

    type: str
    text: str

    def __str__(self) -> str:
        return ": ".join(filter(None, self))

    @property
    def pattern(self) -> str:
        """Its first line with # for each number and address, so that it stands for all alike."""
        return _VARYING.sub("#", self._line)[:_PATTERN_CHARS]

    @property
    def constant(self) -> str:
        """The longest part of its first line without such, by which all alike can be found."""
        return max(_VARYING.split(self._line), key=len).strip()

    @property
    def _line(self) -> str:
        return str(self).partition("\n")[0]


# What a consumer reports as the reason.
GivenCause: TypeAlias = Annotated[
    BaseException | str | None,
    Param("Why the messages are given up; the first 1000 characters are kept.", metavar="TEXT"),
]


class Failure(NamedTuple):
    """A failed attempt at one message.

    ``item`` is the message as it was read. It is redelivered after ``delay_ms``; None gives it up:
    it becomes a dead letter. ``held_ms`` is how long the consumer had it, if that is known.
    """

    item: Any
    error: BaseException | str | None = None
    delay_ms: int | None = None
    held_ms: int | None = None


class LastFailure(NamedTuple):
    """What a store knows of a message that failed; None is unknown."""

    delivered_ms: int | None
    cause: Cause | None


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which dead letters are meant: those that fit everything that is given.

    ``tag`` is that of the message; messages of queues have none. ``error`` is part of the type or
    text of the last error, in any case. ``min_attempts`` is how often it was delivered at least.
    The message was given up at ``after_ms`` or later, and before ``before_ms``.
    """

    tag: str | None = None
    error: str | None = None
    min_attempts: int | None = None
    after_ms: int | None = None
    before_ms: int | None = None

    def __post_init__(self) -> None:
        for name in ("tag", "error"):
            if not isinstance(getattr(self, name), str | None):
                raise InvalidInput(f"{name} must be a str, not {getattr(self, name)!r}")
        for name in ("min_attempts", "after_ms", "before_ms"):
            given = getattr(self, name)
            if given is not None and (not isinstance(given, int) or given < 0):
                raise InvalidInput(f"{name} must be an int from 0 on, not {given!r}")

    def fits(self, tag: str, cause: Cause | None, attempts: int, buried_ms: int) -> bool:
        """Return whether a letter is meant, by what is known of it."""
        return (
            (self.tag is None or tag == self.tag)
            and (not self.error or self.error.casefold() in str(cause or "").casefold())
            and attempts >= (self.min_attempts or 0)
            and buried_ms >= (self.after_ms or 0)
            and (self.before_ms is None or buried_ms < self.before_ms)
        )


ALL_LETTERS: Final = LetterFilter()
# Whoever gives a message up reports it, with an error or without: of what nobody has reported, the
# store itself made a dead letter.
EXPIRED: Final = LastFailure(None, Cause("", "expired"))
USED_UP: Final = LastFailure(None, Cause("", "attempts used up"))


def spelled(error: BaseException | str | None) -> str:
    """Return an error as it is stored: its type, a new line, its text; cut, and in UTF-8."""
    if error is None:
        return ""
    if isinstance(error, str):
        kind, text = "", error
    elif isinstance(error, BaseException):
        kind, text = type(error).__qualname__, _text_of(error)
    else:
        raise InvalidInput(f"error must be an exception or a str, not {type(error).__name__}")
    cut = f"{_cut(kind, MAX_TYPE)}\n{_cut(text, MAX_TEXT)}"
    return cut.encode("utf-8", "backslashreplace").decode()


def read_failure(text: bytes) -> LastFailure:
    """Read "first delivered:error", as the server stores it."""
    delivered, _, error = text.partition(b":")
    kind, _, words = error.decode("utf-8", "replace").partition("\n")
    return LastFailure(int(delivered) if delivered else None, Cause(kind, words) if error else None)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  whatever its own __str__ raises
        return ""


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
