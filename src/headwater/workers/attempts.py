"""Attempts at messages: one step by step, when the next follows, and what happened to them.

with attempt:
    handler(attempt.item)
with attempt.settling():
    source.settle(attempt.batch())
return attempt.outcome()
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from headwater.errors import HeadwaterError, InvalidInput, Undecodable
from headwater.kernel.failures import Failure, delay_s
from headwater.kernel.inputs import Duration, check_int, check_ms
from headwater.kernel.instrument import observe_handler
from headwater.store.presence import ReportedPart

# ── Outcomes ──────────────────────────────────────────────────────────────────────────────────────
# What happened to messages that a worker took: done, failed, or not begun.


Item = TypeVar("Item")

# No handler was called, or it was cancelled: the message counts no attempt.
NotBegun: TypeAlias = Literal["not begun"]
NOT_BEGUN: NotBegun = "not begun"


class Handled(NamedTuple, Generic[Item]):
    """One message: done, unless it has a ``failure`` or was not begun."""

    item: Item
    failure: Failure | NotBegun | None = None


class HandledBatch(NamedTuple, Generic[Item]):
    """Several messages, as a source settles them."""

    done: list[Item]
    not_begun: list[Item]
    failed: list[Failure]


class HandledCounts:
    """How many messages a crew has handled since it was made, and how many attempts failed.

    ``stuck`` threads still run a handler past its time now.
    """

    __slots__ = ("done", "failed", "stuck")

    def __init__(self) -> None:
        self.done = self.failed = self.stuck = 0

    def report(self, name: str, held: int) -> ReportedPart:
        """Return what a crew reports for monitoring."""
        return ReportedPart(name, "worker", name, "running", self.done, self.failed, held=held)

    def add(self, batch: HandledBatch[Item]) -> None:
        """Count the messages of a batch that was settled."""
        self.done += len(batch.done)
        self.failed += len(batch.failed)


def batch_of(handled: Iterable[Handled[Item]]) -> HandledBatch[Item]:
    """Sort messages by what happened to them."""
    batch = HandledBatch[Item]([], [], [])
    for item, failure in handled:
        if failure is None:
            batch.done.append(item)
        elif isinstance(failure, Failure):
            batch.failed.append(failure)
        else:
            batch.not_begun.append(item)
    return batch


# ── Retries ───────────────────────────────────────────────────────────────────────────────────────
# When a worker retries a message, and when it gives it up: the same for groups and queues.
#
# A message is given up after ``max_attempts``; at once when its value does not fit the codec,
# which no retry would change; and untried when it was delivered more often than that, because the
# last attempt was never reported: its handler may have taken the whole worker down.


MOST_ATTEMPTS: Final = 1_000_000
FIRST_BACKOFF_MS: Final = 1000
LONGEST_BACKOFF_MS: Final = 60_000

# The least and the longest delay, in ms.
Span: TypeAlias = tuple[int, int]

log = logging.getLogger("headwater.workers")


class Unanswered(Exception):
    """A message was delivered as often as it may be, and the last time no worker answered."""


class Retries:
    """How often a message is tried, and the delay after each failure.

    After failure n the delay is ``backoff_ms`` x 2^(n-1), at most ``longest_backoff_ms``; of that a
    random part, from half to all, so that messages that failed together do not return together.
    """

    def __init__(
        self,
        max_attempts: int | None,
        backoff_ms: Duration,
        longest_backoff_ms: Duration,
        dice: Callable[[], float] = random.random,
    ) -> None:
        if max_attempts is not None:
            check_int(max_attempts, "max_attempts", 1, MOST_ATTEMPTS)
        self.max_attempts = max_attempts
        self._most = math.inf if max_attempts is None else max_attempts
        self._backoff_ms = check_ms(backoff_ms, "backoff_ms")
        self._longest_ms = check_ms(longest_backoff_ms, "longest_backoff_ms")
        if self._longest_ms < self._backoff_ms:
            raise InvalidInput(
                f"longest_backoff_ms must be at least backoff_ms, {self._backoff_ms}, not "
                f"{self._longest_ms}"
            )
        self._dice = dice
        # The source of the messages, by its name in instruments; log records have it.
        self.object = ""
        # Whether there are dead letters for messages that are given up.
        self.buries = True

    def delay_ms(self, attempt: int) -> int:
        """Return after how long a message whose attempt failed is redelivered."""
        most = delay_s(max(attempt, 1), self._backoff_ms, self._longest_ms)
        return math.ceil(most * (0.5 + self._dice() / 2))

    def check(self, item: Any) -> None:
        """Raise the error that keeps a message from being handled: Undecodable or Unanswered."""
        if item.attempt > self._most:
            raise Unanswered(
                f"no worker answered for attempt {item.attempt - 1} of {self.max_attempts}"
            )
        error = getattr(item, "decoded", None)
        if isinstance(error, Undecodable):
            raise error

    def failure(
        self,
        item: Any,
        error: BaseException,
        began: float,
        where: str,
        *,
        rest_ms: int | None = None,
        settled: Callable[[int, int], Span | None] | None = None,
    ) -> Failure:
        """Log a failed attempt, and return what to report of it.

        ``began`` is when it began, by the monotonic clock; ``where`` names the message. It is
        redelivered after ``rest_ms``, if that is given, instead of a delay of these retries.
        ``settled`` returns what the store makes of an attempt and its delay, for the log line: the
        least and the longest delay.
        """
        delay_ms: int | None = None
        poison = isinstance(error, Undecodable) and error is getattr(item, "decoded", None)
        if not poison and item.attempt < self._most:
            delay_ms = self.delay_ms(item.attempt) if rest_ms is None else rest_ms
        elif not self.buries:
            # There are no dead letters: nothing is lost, and the log line names the cure.
            delay_ms = self._longest_ms
        after_ms = None if delay_ms is None else (delay_ms, delay_ms)
        if delay_ms is not None and settled is not None:
            after_ms = settled(item.attempt, delay_ms)
        self._log_failure(item, error, where, after_ms, poison)
        return Failure(item, error, delay_ms, int((time.monotonic() - began) * 1000))

    def _log_failure(
        self, item: Any, error: BaseException, where: str, after_ms: Span | None, poison: bool
    ) -> None:
        known = {"handled": (self.object, item)}
        then = "it is buried" if after_ms is None else f"it is redelivered in {_words(*after_ms)}"
        if poison:
            # Without the text of the error: that of a codec may quote the value.
            kind = type(error.__cause__ or error).__name__
            cure = "" if self.buries else "; open the group with dead_letters=True to bury it"
            words = "%s, attempt %d, does not fit its codec (%s); %s%s"
            log.error(words, where, item.attempt, kind, then, cure, extra=known)
        elif isinstance(error, Unanswered):
            log.error("%s, attempt %d: %s; %s", where, item.attempt, error, then, extra=known)
        else:
            words = "%s failed, attempt %d; %s"
            log.error(words, where, item.attempt, then, exc_info=error, extra=known)


def _words(least: int, most: int) -> str:
    return f"{most} ms" if least == most else f"{least} to {most} ms"


# ── Attempts ──────────────────────────────────────────────────────────────────────────────────────


class Attempt(NamedTuple):
    """What happened to one message: it is done, unless its handler raised ``error``.

    It is ``buried`` when it was given up. ``unsettled`` is why the outcome did not reach the store:
    the message is redelivered then, although its handler has run.
    """

    message: Any
    error: BaseException | None = None
    buried: bool = False
    unsettled: HeadwaterError | None = None


class AttemptSource(Protocol):
    """What an attempt needs of the source of its message."""

    log: logging.Logger
    name: str
    retries: Retries

    def failed(self, item: Any, error: BaseException, began: float) -> Failure:
        """Log a failed attempt that began then; returns what to report of it."""

    def buries(self, failure: Failure) -> bool:
        """Return whether a message is given up by this failure."""


class AttemptUnderWay:
    """An attempt: as a context, it is around the call of the handler."""

    def __init__(self, source: AttemptSource, item: Any) -> None:
        self.item = item
        self._source = source
        self._handled: Handled[Any] = Handled(item)
        self._unsettled: HeadwaterError | None = None

    def __enter__(self) -> None:
        self._observation = observe_handler(self._source.name, self.item)
        self._began = time.monotonic()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self._observation is not None:
            self._observation.messages = int(error is None)
            self._observation.end("ok" if error is None else "failed", error)
        if isinstance(error, Exception):
            failure = self._source.failed(self.item, error, self._began)
            self._handled = Handled(self.item, failure)
            return True
        # What is not an Exception ends the caller of run_once, and not only the attempt.
        return False

    def batch(self) -> HandledBatch[Any]:
        """Return what is to be settled."""
        return batch_of([self._handled])

    @contextlib.contextmanager
    def settling(self) -> Iterator[None]:
        """Note, and log, that the outcome did not reach the store."""
        try:
            yield
        except HeadwaterError as error:
            self._unsettled = error
            self._source.log.warning("a message could not be acknowledged: %s", error)

    def outcome(self) -> Attempt:
        """Return what happened to the message."""
        failure = self._handled.failure
        if not isinstance(failure, Failure) or not isinstance(failure.error, BaseException):
            return Attempt(self.item, unsettled=self._unsettled)
        buried = self._unsettled is None and self._source.buries(failure)
        return Attempt(self.item, failure.error, buried, self._unsettled)
