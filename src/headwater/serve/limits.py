"""What servers accept: how many clients, how many bytes, and for how long.

Every limit is one of a process: a server of four processes has four times as many places. The
options of commands that serve are made of what is declared here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, TypeAlias, get_type_hints

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Param, Spelling
from headwater.kernel.inputs import MAX_MS, check_int
from headwater.log.keys import MAX_BATCH_MESSAGES, MAX_VALUE_BYTES

_MOST_BYTES: Final = 1 << 40

_Places = partial(Param, least=1, most=1_000_000, metavar="N")
_Size = partial(Param, shape=Spelling.SIZE, least=1, most=_MOST_BYTES, metavar="SIZE")
_Ms = partial(Param, shape=Spelling.MS, least=1, most=MAX_MS)
_Anonymous: TypeAlias = Annotated[int, _Places("Connections whose clients have shown no token.")]
_ReplyMs: TypeAlias = Annotated[int, _Ms("Milliseconds that a client may take to read a reply.")]
_DrainMs: TypeAlias = Annotated[
    int, _Ms("Milliseconds that running requests have to finish after a signal.", least=0)
]


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of each process of a server; ``docs/reference/limits.md`` explains them.

    A client is anonymous until the server has accepted a token of it. Without tokens nobody is.
    Raises InvalidInput for a limit that cannot work.
    """

    max_connections: Annotated[int, _Places("Connections that may be open.")] = 1000
    max_anonymous: _Anonymous = 250
    max_buffered: Annotated[int, _Size("What all connections may buffer together.")] = 64 << 20
    max_head: Annotated[int, _Size("Largest head of a request.", least=256, most=1 << 20)] = (
        64 << 10
    )
    max_headers: Annotated[
        int, _Places("Headers of a request, trailers included.", most=10_000)
    ] = 100
    max_body: Annotated[int, _Size("Largest body of a request.", most=1 << 30)] = 16 << 20
    head_ms: Annotated[
        int,
        _Ms(
            "Milliseconds from the first byte of a head to its last, and until an idle client that "
            "has shown no token is disconnected."
        ),
    ] = 10_000
    request_ms: Annotated[
        int, _Ms("Milliseconds from the first byte of a request to its last.")
    ] = 60_000
    idle_ms: Annotated[int, _Ms("Milliseconds until an idle client is disconnected.")] = 120_000
    reply_ms: _ReplyMs = 60_000
    drain_ms: _DrainMs = 5_000

    def __post_init__(self) -> None:
        _check(self)
        _check_room(self.max_buffered, "max_body", self.max_body)


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
    """The limits of each process for clients of Redis; see HttpLimits."""

    max_connections: Annotated[
        int, _Places("Redis clients that may be connected.", called="resp_max_connections")
    ] = 10_000
    max_anonymous: _Anonymous = 250
    max_buffered: Annotated[
        int,
        _Size("What all of them may buffer together.", least=1 << 20, called="resp_max_buffered"),
    ] = 256 << 20
    max_frame: Annotated[
        int,
        _Size(
            "Largest command of one of them.", least=1 << 10, most=1 << 30, called="resp_max_frame"
        ),
    ] = 80 << 20
    max_reply: Annotated[
        int,
        _Size(
            "Largest reply to one of them.", least=1 << 10, most=1 << 30, called="resp_max_reply"
        ),
    ] = 64 << 20
    hello_ms: Annotated[int, _Ms("", called="head_ms")] = 10_000
    frame_ms: Annotated[int, _Ms("", called="request_ms")] = 60_000
    reply_ms: _ReplyMs = 60_000
    drain_ms: _DrainMs = 5_000

    def __post_init__(self) -> None:
        _check(self)
        _check_room(self.max_buffered, "max_frame", self.max_frame)

    @property
    def known(self) -> FrameLimits:
        """How large the commands of a client may be that is not anonymous."""
        return FrameLimits(
            2 * MAX_BATCH_MESSAGES + 16, min(MAX_VALUE_BYTES, self.max_frame), self.max_frame
        )


def declared_limits(kind: type) -> dict[str, Param]:
    """Return what is declared of each limit, by its name."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


def _check(limits: Any) -> None:
    for name, says in declared_limits(type(limits)).items():
        check_int(getattr(limits, name), name, says.least or 0, says.most or 0)


def _check_room(max_buffered: int, name: str, most: int) -> None:
    if max_buffered < most:
        raise InvalidInput(
            f"max_buffered is {max_buffered} and must be at least {name}, which is {most}; raise "
            "the first or lower the second"
        )
