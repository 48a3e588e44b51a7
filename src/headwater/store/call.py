"""What an operation may ask of a store: the seam between meaning and I/O.

An operation is a generator: it yields requests, is sent their replies, and returns its result.
It never touches a socket, a clock or a source of randomness, so that the sync and the async store
run the very same definition, and a test can run it in a time of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

Argument: TypeAlias = "str | bytes | int"
# Keys of ours are text; those of a timeline are whatever bytes its users chose.
Key: TypeAlias = "str | bytes"
# How many messages a request moves, for instruments: a number, or what counts them in the request
# and its reply. The latter is called only when an instrument is installed.
Count: TypeAlias = "int | Callable[[Any, Any], int]"


class Call(NamedTuple):
    """One call of a server function on one object.

    ``repeatable`` says that running it twice does no harm; only then may a store send it again
    after a connection broke with the outcome unknown. ``also`` names further keys, of an object
    whose other keys do not begin with the first; all lie in one slot. ``leave`` is sent when the
    caller goes away instead of taking the reply: it is cancelled, or its client is closed.
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
    """One blocking command, run apart so that it holds up nobody else.

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

    The reply is the list of theirs, or None when that did not work: whoever looks has another way,
    by a Call, which recovers. They are no atomic step, so it must be able to tell that things
    changed in between. For what is needed often and costs more inside a function.
    """

    key: str
    commands: tuple[tuple[Argument, ...], ...]
    messages: Count = 0


class Many(NamedTuple):
    """Calls that do not wait for each other, sent together: thousands in a few round trips.

    Each must be read-only or repeatable. The reply is the list of theirs, in this order; where a
    function refused, its Refusal stands in the list. Each call is a step of its own: they happen
    in any order, and other clients' calls in between. Meant for small replies, which are all kept.
    """

    calls: Sequence[Call]


class ScanKeys(NamedTuple):
    """Ask one server of the store for some of its keys, whoever owns them.

    The reply is how many servers there are, the cursor to go on with, which is b"0" at the end, and
    keys. A key that is there all the while is named at least once.
    """

    server: int
    cursor: bytes
    page: int


class Clock(NamedTuple):
    """Ask for a monotonic time in milliseconds, to count down a blocking call."""


class Token(NamedTuple):
    """Ask for a random text of 8 characters, for a name that nobody else has."""


class YieldTurn(NamedTuple):
    """Let others of the same event loop have their turn, in the middle of a long computation.

    With ``pause_s``, wait so long: for work at a rate.
    """

    pause_s: float = 0.0


Request: TypeAlias = "Call | Wait | Look | Many | ScanKeys | Clock | Token | YieldTurn"
Operation: TypeAlias = Generator[Request, Any, T]
