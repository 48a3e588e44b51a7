"""What the sync and the async worker of a group have in common: names, delays, logging."""

from __future__ import annotations

import logging
from typing import Any, Generic, TypeVar

from headwater.log.limits import check_ms
from headwater.log.types import Message
from headwater.outages import delay_s

AnyGroup = TypeVar("AnyGroup")


class GroupMessages(Generic[AnyGroup]):
    """A group as a source of messages, as far as that needs no I/O."""

    log = logging.getLogger("headwater.workers")

    def __init__(
        self,
        group: AnyGroup,
        name: str,
        retry_ms: int,
        expire_ms: int | None,
        backoff_ms: int,
        longest_backoff_ms: int,
    ) -> None:
        self.group = group
        self.name = name
        self.retry_ms = retry_ms
        self.expire_ms = None if expire_ms is None else check_ms(expire_ms, "expire_ms", 1)
        self._backoff_ms = check_ms(backoff_ms, "backoff_ms")
        self._longest_ms = check_ms(longest_backoff_ms, "longest_backoff_ms")

    def __repr__(self) -> str:
        return repr(self.group)

    def key_of(self, message: Message[Any]) -> int:
        """Return the key of a message: its offset, however often it is redelivered."""
        return message.offset

    def delay_ms(self, attempt: int) -> int:
        """Return after how long a message whose attempt failed is redelivered."""
        return int(delay_s(attempt, self._backoff_ms, self._longest_ms))

    def failed(self, message: Message[Any]) -> int:
        """Log a failure; returns after how long the message is redelivered."""
        delay_ms = self.delay_ms(message.attempt)
        self.log.exception("offset %d failed; it is redelivered in %d ms", message.offset, delay_ms)
        return delay_ms
