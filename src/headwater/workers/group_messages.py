"""What the sync and the async worker of a group have in common: names, retries, checks."""

from __future__ import annotations

import logging
from typing import Any, Generic, Protocol, TypeVar

from headwater.failures import Failure
from headwater.log.failing import no_letters
from headwater.log.limits import check_ms
from headwater.log.types import GroupInfo, Message
from headwater.workers.retries import Retries, log


class _Named(Protocol):
    name: str
    stream: str


AnyGroup = TypeVar("AnyGroup", bound=_Named)


class GroupMessages(Generic[AnyGroup]):
    """A group as a source of messages, as far as that needs no I/O."""

    log: logging.Logger = log

    def __init__(
        self,
        group: AnyGroup,
        name: str,
        retry_ms: int,
        expire_ms: int | None,
        retries: Retries,
    ) -> None:
        self.group = group
        self.name = name
        self.retry_ms = retry_ms
        self.expire_ms = None if expire_ms is None else check_ms(expire_ms, "expire_ms", 1)
        self.retries = retries

    def __repr__(self) -> str:
        return repr(self.group)

    def begun(self, info: GroupInfo) -> None:
        """Learn whether the group keeps dead letters; raises InvalidInput when they are needed."""
        self.retries.buries = info.dead_letters is not None
        if self.retries.max_attempts is not None and not self.retries.buries:
            raise no_letters(self.group.stream, self.group.name)

    def key_of(self, message: Message[Any]) -> int:
        """Return the key of a message: its offset, however often it is redelivered."""
        return message.offset

    def failed(self, message: Message[Any], error: BaseException, began: float) -> Failure:
        """Log a failed attempt; returns what to report of it."""
        return self.retries.failure(
            message, error, began, f"offset {message.offset} of {self.name}"
        )
