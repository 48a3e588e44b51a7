"""Failed attempts, what a dead letter says of the last one, and waiting before a retry.

An error is stored by its type and its text, each cut at a length that is stated here. It is sent
with a report of a failure only, so that messages which succeed cost nothing.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

from headwater.errors import InvalidInput, StoreError
from headwater.kernel.declaring import Param, Spelling
from headwater.kernel.inputs import MAX_EXACT

# ── Failures ──────────────────────────────────────────────────────────────────────────────────────


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


_From: TypeAlias = Annotated[
    int | None,
    Param(
        "Only letters that were given up from then on.",
        Spelling.TIME,
        least=0,
        most=MAX_EXACT,
        metavar="TIME",
    ),
]
_Before: TypeAlias = Annotated[
    int | None,
    Param(
        "Only letters that were given up before then.",
        Spelling.TIME,
        least=0,
        most=MAX_EXACT,
        metavar="TIME",
    ),
]


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which dead letters are meant: those that fit everything that is given.

    ``tag`` is that of the message; messages of queues have none. ``error`` is part of the type or
    text of the last error, in any case. ``min_attempts`` is how often it was delivered at least.
    The message was given up at ``after_ms`` or later, and before ``before_ms``.
    """

    tag: Annotated[str | None, Param("Only letters whose message has this tag.")] = None
    error: Annotated[
        str | None,
        Param("Only letters whose last error has this text.", metavar="TEXT"),
    ] = None
    min_attempts: Annotated[
        int | None,
        Param("Only letters that were delivered N times.", least=0, most=MAX_EXACT, metavar="N"),
    ] = None
    after_ms: _From = None
    before_ms: _Before = None

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


# ── Outages ───────────────────────────────────────────────────────────────────────────────────────
# How long to wait before a retry, and what to log of it.
#
# An outage is logged when it begins and when it is over, whatever the number of retries in
# between.


FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 2.0
# How long work that has an end waits out an outage; what runs on and on waits as long as it lasts.
PATIENCE_S = 60.0
# How long a program that runs on and on waits at its start for a store that is not there yet.
START_MS = 30_000


def store_may_recover(error: StoreError) -> bool:
    """Return whether the store may serve by the next retry, without anybody doing anything."""
    return not error.lasting


def delay_s(failures: int, first_s: float, longest_s: float) -> float:
    """Return how long to wait after so many failures in a row: twice as long after each."""
    return min(first_s * 2.0 ** min(failures - 1, 60), longest_s)


class Outage:
    """One outage after another, each logged when it begins and when it is over.

    ``most_s`` is how long the caller retries, when it does not retry forever.
    """

    BEGIN = "%s is held up, and retries %s: %s"
    END = "%s works again, after %.1f s and %d tries"

    def __init__(
        self,
        who: str,
        log: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
        *,
        most_s: float | None = None,
    ) -> None:
        self._who = who
        self._how_long = "until it works" if most_s is None else f"for up to {most_s:g} s"
        self._log = log
        self._clock = clock
        self._failures = 0
        self._since = 0.0
        self._logged = False

    def meet(self, error: BaseException) -> float:
        """Note an error, and log the first; returns the seconds to wait before the next try."""
        self._failures += 1
        if self._failures == 1:
            self._since = self._clock()
        if not self._logged and self._is_worth_logging(error, self._failures):
            self._logged = True
            why = self._reason(error)
            self._log.warning(self.BEGIN, self._who, self._how_long, why)
        return delay_s(self._failures, FIRST_DELAY_S, LONGEST_DELAY_S)

    @property
    def lasts_s(self) -> float:
        """How long the outage lasts that is under way; 0 when there is none."""
        return self._clock() - self._since if self._failures else 0.0

    def over(self) -> None:
        """Note that it works again, and log the end of an outage."""
        if self._logged:
            took = self._clock() - self._since
            self._log.warning(self.END, self._who, took, self._failures)
        self._failures, self._logged = 0, False

    def _reason(self, error: BaseException) -> str:
        return str(error).strip().partition("\n")[0]

    def _is_worth_logging(self, error: BaseException, failures: int) -> bool:  # noqa: ARG002
        return True
