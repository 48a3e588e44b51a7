"""One attempt at one message, by a worker that is run step by step: what both kinds share.

with attempt:
    handler(attempt.item)
with attempt.settling():
    source.settle(attempt.batch())
return attempt.outcome()
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from headwater.errors import HeadwaterError
from headwater.kernel.failures import Failure
from headwater.kernel.instrument import observe_handler
from headwater.workers.outcomes import Handled, HandledBatch, batch_of
from headwater.workers.retries import Retries


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
