"""What an operation may ask of a store: the seam between meaning and I/O.

An operation is a generator: it yields requests, is sent their replies, and returns its result. It
never touches a socket, a clock or a source of randomness, so that the sync and the async store run
the same definition, and a test can run it with its own clock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

Argument: TypeAlias = "str | bytes | int"
# Keys of ours are text; those of a timeline are any bytes that its users chose.
Key: TypeAlias = "str | bytes"
# How many messages a request moves, for instruments: a number, or what counts them in the request
# and its reply. The latter is called only when an instrument is installed.
Count: TypeAlias = "int | Callable[[Any, Any], int]"


class Call(NamedTuple):
    """One call of a server function on one object.

    ``repeatable`` says that running it twice is harmless; only then may a store send it again after
    a connection broke with the outcome unknown. ``also`` names further keys, of an object whose
    other keys do not begin with the first; all are in one slot. ``leave`` is sent when the caller
    does not take the reply because it is cancelled or its client is closed.
    """

    function: str
    key: Key
    args: tuple[Argument, ...] = ()
    read_only: bool = False
    repeatable: bool = False
    also: tuple[Key, ...] = ()
    messages: Count = 0
    leave: Call | None = None


class Wait(NamedTuple):
    """One blocking command, on a connection of its own, so that it delays no other call.

    ``key`` routes it on a cluster. The reply is None when ``timeout_ms`` passes. ``leave`` is sent
    as that of a Call.
    """

    key: str
    command: tuple[Argument, ...]
    timeout_ms: int
    messages: Count = 0
    leave: Call | None = None


class Look(NamedTuple):
    """Several commands that only read the keys of one object, sent together, in this order.

    The reply is the list of their replies, or None when that failed: the operation then uses a
    Call, which recovers. They are not atomic, so the operation must notice changes in between. For
    reads that are frequent and cost more inside a function.
    """

    key: str
    commands: tuple[tuple[Argument, ...], ...]
    messages: Count = 0


class Many(NamedTuple):
    """Calls that do not wait for each other, sent together: thousands in a few round trips.

    Each must be read-only or repeatable. The reply is the list of theirs, in this order; where a
    function refused, the list has its Refusal. Each call is a step of its own: they happen in any
    order, and other clients' calls in between. Meant for small replies, which are all kept.
    """

    calls: Sequence[Call]


class ScanKeys(NamedTuple):
    """Ask one server of the store for some of its keys, of any owner.

    The reply is how many servers there are, the cursor to continue with, which is b"0" at the end,
    and keys. A key that exists during the whole scan is named at least once.
    """

    server: int
    cursor: bytes
    page: int


class Clock(NamedTuple):
    """Ask for a monotonic time in milliseconds, to count down a blocking call."""


class Token(NamedTuple):
    """Ask for a random text of 8 characters, for a unique name."""


class YieldTurn(NamedTuple):
    """Let other tasks of the event loop run, in the middle of a long computation.

    With ``pause_s``, wait this long: for work at a rate.
    """

    pause_s: float = 0.0


Request: TypeAlias = "Call | Wait | Look | Many | ScanKeys | Clock | Token | YieldTurn"
Operation: TypeAlias = Generator[Request, Any, T]
