"""What an HTTP server accepts: how many connections, how many bytes, and for how long.

Every limit is one of a process: a server of four processes has four times as many places.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.errors import InvalidInput
from headwater.kernel.inputs import check_int, check_ms

_MOST_CONNECTIONS = 1_000_000
_MOST_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of each process of a server; ``docs/reference/limits.md`` explains them.

    A client is anonymous until the server has accepted a token of it. Without tokens nobody is.
    Raises InvalidInput for a limit that cannot work.
    """

    max_connections: int = 1000
    max_anonymous: int = 250
    max_buffered: int = 64 << 20
    max_head: int = 64 << 10
    max_headers: int = 100
    max_body: int = 16 << 20
    head_ms: int = 10_000
    request_ms: int = 60_000
    idle_ms: int = 120_000
    reply_ms: int = 60_000
    drain_ms: int = 5_000

    def __post_init__(self) -> None:
        check_int(self.max_connections, "max_connections", 1, _MOST_CONNECTIONS)
        check_int(self.max_anonymous, "max_anonymous", 1, _MOST_CONNECTIONS)
        check_int(self.max_buffered, "max_buffered", 1, _MOST_BYTES)
        check_int(self.max_head, "max_head", 256, 1 << 20)
        check_int(self.max_headers, "max_headers", 1, 10_000)
        check_int(self.max_body, "max_body", 1, 1 << 30)
        for name in ("head_ms", "request_ms", "idle_ms", "reply_ms"):
            check_ms(getattr(self, name), name, 1)
        check_ms(self.drain_ms, "drain_ms")
        if self.max_buffered < self.max_body:
            raise InvalidInput(
                f"max_buffered is {self.max_buffered} and must be at least max_body, which is "
                f"{self.max_body}; raise the first or lower the second"
            )
