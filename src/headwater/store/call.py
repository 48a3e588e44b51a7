"""What an operation may ask of a store: the seam between meaning and I/O.

An operation is a generator: it yields requests, is sent their replies, and returns its result. It
never touches a socket, a clock or a source of randomness, so that the sync and the async store run
the same definition, and a test can run it with its own clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from headwater.kernel.inputs import check_int

# ── Call ──────────────────────────────────────────────────────────────────────────────────────────


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


# ── Object names ──────────────────────────────────────────────────────────────────────────────────
# Which object a key of the server belongs to.


# The keys of our objects: a letter for the data type, the name in braces, and of the keys on which
# members of a group wait, the group's name and its length.
_OURS = re.compile(r"hw:(?:(\w+):)?\{([^}]*)\}(?::g:(\d+):(.*))?", re.DOTALL)
_TYPES = {"s": "stream", "t": "topic", "q": "queue", "c": "channel", "cs": "channel"}


@lru_cache(maxsize=4096)
def object_of(key: Key) -> tuple[str, str]:
    """Return the data type and the name of the object that has a key; '' when its key is data."""
    if isinstance(key, bytes):
        return "timeline", ""
    ours = _OURS.match(key)
    if ours is None:
        return "ick", key
    letter, name, length, rest = ours.groups()
    if length is not None:
        return "group", f"{name}/{rest.encode()[: int(length)].decode()}"
    if letter == "cs":
        # A shard of a channel: its number is not a name.
        name = name.rsplit("/", 2)[0]
    return _TYPES.get(letter, "store"), name


# ── Pacing ────────────────────────────────────────────────────────────────────────────────────────
# Work at a rate: a bounded amount in each step, and a pause after it.


MAX_RATE: Final = 1_000_000
_STEPS_PER_S: Final = 5


class Pace(NamedTuple):
    """How many per second at most; None is no limit."""

    per_s: int | None = None

    def check(self) -> Pace:
        """Return itself; raises InvalidInput for an invalid rate."""
        if self.per_s is not None:
            check_int(self.per_s, "rate_per_s", 1, MAX_RATE)
        return self

    def step(self, most: int) -> int:
        """Return how many are done in one step, ``most`` of them."""
        return most if self.per_s is None else min(-(-self.per_s // _STEPS_PER_S), most)

    def rest_s(self, done: int) -> float:
        """Return how many seconds to wait after a number was done."""
        return 0.0 if self.per_s is None else done / self.per_s

    def rest(self, done: int) -> Operation[None]:
        """Wait as long as that."""
        if self.per_s is not None:
            yield YieldTurn(self.rest_s(done))
