"""What the RESP door accepts: how many clients, how many bytes, and for how long.

Every limit is one of a process: a server of four processes has four times as many places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headwater.errors import InvalidInput
from headwater.kernel.inputs import check_int, check_ms
from headwater.log.keys import MAX_BATCH_MESSAGES, MAX_VALUE_BYTES

_MOST_CONNECTIONS: Final = 1_000_000
_MOST_BYTES: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """How large a command may be: its arguments, each of them, their sum, and an inline command.

    In the sum each argument counts 64 bytes more than it has.
    """

    max_arguments: int
    max_argument: int
    max_frame: int
    max_inline: int = 64 << 10
    anonymous: bool = False


# What a client may send that has shown no token: enough for HELLO, AUTH and CLIENT SETINFO.
ANONYMOUS: Final = FrameLimits(10, 16 << 10, 10 * (16 << 10) + 1024, anonymous=True)


@dataclass(frozen=True, slots=True)
class RespLimits:
    """The limits of each process of a server; ``docs/reference/limits.md`` explains them.

    A client is anonymous until the server has accepted a token of it. Without tokens nobody is.
    Raises InvalidInput for a limit that cannot work.
    """

    max_connections: int = 10_000
    max_anonymous: int = 250
    max_buffered: int = 256 << 20
    max_frame: int = 80 << 20
    max_reply: int = 64 << 20
    hello_ms: int = 10_000
    frame_ms: int = 60_000
    reply_ms: int = 60_000
    drain_ms: int = 5_000

    def __post_init__(self) -> None:
        check_int(self.max_connections, "max_connections", 1, _MOST_CONNECTIONS)
        check_int(self.max_anonymous, "max_anonymous", 1, _MOST_CONNECTIONS)
        check_int(self.max_buffered, "max_buffered", 1 << 20, _MOST_BYTES)
        check_int(self.max_frame, "max_frame", 1 << 10, 1 << 30)
        check_int(self.max_reply, "max_reply", 1 << 10, 1 << 30)
        for name in ("hello_ms", "frame_ms", "reply_ms"):
            check_ms(getattr(self, name), name, 1)
        check_ms(self.drain_ms, "drain_ms")
        if self.max_buffered < self.max_frame:
            raise InvalidInput(
                f"max_buffered is {self.max_buffered} and must be at least max_frame, which is "
                f"{self.max_frame}; raise the first or lower the second"
            )

    @property
    def known(self) -> FrameLimits:
        """How large the commands of a client may be that is not anonymous."""
        return FrameLimits(
            2 * MAX_BATCH_MESSAGES + 16, min(MAX_VALUE_BYTES, self.max_frame), self.max_frame
        )
