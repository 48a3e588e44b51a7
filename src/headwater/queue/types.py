"""The records that a queue returns to its users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Generic, Literal, TypeAlias, cast

import msgspec

from headwater.errors import Undecodable
from headwater.kernel.codecs import D, or_raise, shown
from headwater.kernel.declaring import Param, Spelling
from headwater.kernel.failures import Cause
from headwater.kernel.headers import NO_HEADERS, Headers
from headwater.kernel.inputs import MAX_MS, NO_LIMITS, Duration, Limits
from headwater.queue.keys import MAX_ATTEMPTS

State: TypeAlias = Literal["ready", "delayed", "unacked", "dead", "damaged"]
Backoff: TypeAlias = Literal["none", "fixed", "exponential"]

# Settings as parameters of operations; None leaves one as it is.
GivenAttempts: TypeAlias = Annotated[
    int | None,
    Param(
        "Give a message up after so many attempts; 0: never.",
        least=0,
        most=MAX_ATTEMPTS,
        metavar="N",
    ),
]
GivenBackoff: TypeAlias = Annotated[
    Backoff | None,
    Param("How the delay between attempts grows: none, fixed or exponential.", metavar="HOW"),
]
GivenBackoffMs: TypeAlias = Annotated[
    Duration | None,
    Param("Milliseconds before the second attempt.", Spelling.MS, 0, MAX_MS, word="BACKOFFMS"),
]
LongestBackoffMs: TypeAlias = Annotated[
    Duration | None,
    Param("Milliseconds between two attempts at most.", Spelling.MS, 0, MAX_MS),
]


# Upper bounds, in ms, of the histogram of wait times.
WAIT_BOUNDS_MS: Final = (
    *(1, 5, 25, 100, 500, 1000, 5000, 30_000, 60_000, 300_000, 3_600_000, 86_400_000),
)


class Delivery(msgspec.Struct, Generic[D], frozen=True, gc=False):
    """One message in the hands of a consumer.

    ``attempt`` counts how often it was delivered, from 1. ``receipt`` is what ``ack``, ``nack``
    and ``extend`` go by: it is of this delivery and no other, and empty when there is nothing to
    acknowledge. ``data`` is the value as the codec of the queue decodes it; without a codec, its
    bytes. A Struct, because pops make many of them; only one that has headers takes room for them.
    """

    id: str
    value: bytes
    attempt: int
    receipt: str

    @property
    def data(self) -> D:
        """The decoded value; raises Undecodable when it does not fit the codec."""
        return cast("D", self.value)

    @property
    def headers(self) -> Headers:
        """What was pushed beside the value, by name; an empty map when nothing was."""
        return NO_HEADERS


class HeadedDelivery(Delivery[D], frozen=True, gc=False):
    """A message of a queue that has headers."""

    headers: Headers = NO_HEADERS

    def __repr__(self) -> str:
        return shown(self, "Delivery")


class DecodedDelivery(Delivery[D], frozen=True, gc=True):
    """A message of a queue that has a codec."""

    decoded: D | Undecodable | None = None
    headers: Headers = NO_HEADERS

    def __repr__(self) -> str:
        return shown(self, "Delivery")

    @property
    def data(self) -> D:
        """The decoded value; raises Undecodable when it does not fit the codec."""
        return or_raise(self.decoded)


class QueueItem(msgspec.Struct, frozen=True, gc=False):
    """One message as it is stored in a queue, seen without taking it.

    ``attempt`` counts how often it was delivered so far. ``due_ms`` is when it comes due
    (delayed), when its deadline is (unacked) or when it was given up (dead). ``expires_ms`` is the
    end of its life. Times are milliseconds since 1970 by the server's clock. ``place`` is where it
    is, for ``redrive`` and ``discard``. Of a damaged one only ``value`` is known: what was found.
    ``dead`` shows when a letter was delivered for the first time, and the ``cause`` of its last
    failure; both are None when nobody reported a failure, as a worker does.
    """

    id: str
    value: bytes
    state: State
    priority: int
    attempt: int
    pushed_ms: int
    due_ms: int | None
    expires_ms: int | None
    place: str
    headers: Headers = NO_HEADERS
    delivered_ms: int | None = None
    cause: Cause | None = None

    @property
    def buried_ms(self) -> int | None:
        """When it became a dead letter; None when it is none."""
        return self.due_ms if self.state == "dead" else None


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How a queue treats failed messages: how often they are tried, and the delay in between.

    ``max_attempts`` None is no limit. ``backoff`` "fixed" delays by ``backoff_ms`` each time,
    "exponential" twice as long each time, up to ``longest_backoff_ms``; each message is delayed for
    a part of that, between half and all, which differs from message to message.
    """

    max_attempts: int | None = None
    backoff: Backoff = "none"
    backoff_ms: int = 1000
    longest_backoff_ms: int = 3_600_000

    def __str__(self) -> str:
        attempts = self.max_attempts or "no limit"
        backoff: str = self.backoff
        if backoff == "fixed":
            backoff += f", {self.backoff_ms} ms"
        elif backoff == "exponential":
            longest = f"{self.longest_backoff_ms} ms, of that half to all"
            backoff += f", {self.backoff_ms} ms up to {longest}"
        return f"attempts: {attempts}; back-off: {backoff}"


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The state of a queue.

    ``ready`` could be popped now, ``delayed`` wait for their time, ``unacked`` are with consumers,
    ``dead`` were given up, ``damaged`` could not be read and were put aside. ``pushed``,
    ``popped``, ``acked`` and ``expired`` (outlived their ``ttl_ms``) count since the queue began;
    the rates are those of the last ten to twenty seconds. ``oldest_ms`` is how long the oldest
    ready message has been waiting, ``oldest_delayed_ms`` how long ago the oldest delayed one was
    pushed or last delivered, ``oldest_unacked_ms`` how long a consumer has held the oldest one,
    ``oldest_dead_ms`` how long ago the first dead letter was given up; None when there is none.
    Where more than 32 bundles of one priority are delayed or unacked, these are looked for among
    the 32 that are due first. ``waiting`` consumers are blocked. ``waits`` are how many messages
    waited up to each of ``WAIT_BOUNDS_MS`` from when they could be popped until they were, and in
    its last place those that waited longer; ``waited_ms`` is about the sum. A server that dies
    loses from these two at most the pops of the last 100 ms of use. ``limits`` count for all
    consumers.
    """

    name: str
    ready: int
    delayed: int
    unacked: int
    dead: int
    damaged: int
    oldest_ms: int | None
    oldest_delayed_ms: int | None
    oldest_unacked_ms: int | None
    oldest_dead_ms: int | None
    pushed: int
    popped: int
    acked: int
    expired: int
    pushed_per_s: float
    popped_per_s: float
    acked_per_s: float
    waiting: int
    paused: bool
    exists: bool
    priorities: tuple[int, ...]
    settings: QueueSettings
    waits: tuple[int, ...]
    waited_ms: int
    limits: Limits = NO_LIMITS

    def waited_up_to_ms(self, share: float) -> int | None:
        """Return the bound up to which that share of all messages waited.

        None when none was popped yet, and when the bound is beyond the largest.
        """
        seen, wanted = 0, share * sum(self.waits)
        for bound, count in zip(WAIT_BOUNDS_MS, self.waits, strict=False):
            seen += count
            if seen and seen >= wanted:
                return bound
        return None


@dataclass(frozen=True, slots=True)
class KeptQueue:
    """What housekeeping did to a queue, in messages and producers.

    ``returned`` were not acknowledged in time and are redelivered, ``buried`` were given up,
    ``outlived`` their ``ttl_ms``. ``fault`` says why the rest was left undone.
    """

    queue: str
    returned: int = 0
    buried: int = 0
    outlived: int = 0
    producers: int = 0
    fault: str | None = None

    @property
    def changed(self) -> bool:
        """Whether anything is other than before."""
        return any((self.returned, self.buried, self.outlived, self.producers))
