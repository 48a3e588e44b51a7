"""On which terms a group read takes messages: for how long, until when, and how much at once."""

from __future__ import annotations

from typing import NamedTuple

from headwater.errors import InvalidInput
from headwater.inputs import DEADLINE, Duration
from headwater.log.limits import UNPACKED_BYTES, check_ms
from headwater.sizes import check_max_bytes
from headwater.store.call import Argument


class Terms(NamedTuple):
    """When a message is redelivered, and when it is given up; None is never.

    A read takes no more once its messages have ``max_bytes``.
    """

    retry_ms: int | None
    expire_ms: int | None
    max_bytes: int = UNPACKED_BYTES

    @classmethod
    def of(
        cls, retry_ms: Duration | None, expire_ms: Duration | None, max_bytes: int | None
    ) -> Terms:
        """Accept the arguments of a caller."""
        most = min(check_max_bytes(max_bytes) or UNPACKED_BYTES, UNPACKED_BYTES)
        if expire_ms is not None:
            if retry_ms is None:
                raise InvalidInput(
                    "expire_ms needs ack_ms: only what must be acknowledged can expire"
                )
            expire_ms = check_ms(expire_ms, "expire_ms", 1)
        if retry_ms is not None:
            retry_ms = check_ms(retry_ms, DEADLINE, 1)
        return cls(retry_ms, expire_ms, most)

    def words(self) -> tuple[Argument, Argument]:
        """Return the times as the server takes them."""
        retry_ms, expire_ms, _ = self
        return ("" if retry_ms is None else retry_ms, "" if expire_ms is None else expire_ms)
