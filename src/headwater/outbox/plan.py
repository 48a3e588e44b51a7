"""How a consumer was asked to work, what it has done, and what it asks of whatever runs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypedDict, TypeVar, get_args

from sqlalchemy import Connection, Engine, Executable
from sqlalchemy.ext.asyncio import AsyncEngine

from headwater.errors import InvalidInput
from headwater.kernel.codecs import Coder
from headwater.kernel.inputs import Duration, refuse_own_name, whole_ms
from headwater.log.aio_stream import AsyncStream
from headwater.log.aio_topic import AsyncTopic
from headwater.log.handles import Start, check_start
from headwater.log.keys import MAX_OFFSET, MAX_READ, check_count, check_ms, check_name
from headwater.log.stream import Stream
from headwater.log.topic import Topic
from headwater.outbox.consumer_letters import letters_stream
from headwater.outbox.schema import check_dialect
from headwater.store.call import Operation

# ── Requests ──────────────────────────────────────────────────────────────────────────────────────
# What a consumer asks of whatever runs it: the seam between what it does and its I/O.
#
# Work is a generator: it yields requests, is sent their replies, and returns its result. It
# touches neither the log nor the database, so that the sync and the async consumer run the same
# definition.


T = TypeVar("T")


class Ask(NamedTuple):
    """Run an operation of the log."""

    operation: Operation[Any]


class Transact(NamedTuple):
    """Run work in one SQL transaction: committed when it returns, rolled back when it raises.

    ``alone`` keeps other transactions of the same consumer that ask for it from running beside it.
    """

    work: Work[Any]
    alone: bool = False


class Fetch(NamedTuple):
    """Run a statement in the open transaction; the reply is the first column of the first row."""

    statement: Executable
    values: dict[str, Any]


class Execute(NamedTuple):
    """Run a statement in the open transaction; the reply is the number of rows it changed."""

    statement: Executable
    values: dict[str, Any]


class Handle(NamedTuple):
    """Call the handler of a stream or topic in the open transaction."""

    stream: str
    messages: list[Any]


class Restore(NamedTuple):
    """Call what replaces the state in the open transaction."""

    stream: str
    state: Any


class InspectTransaction(NamedTuple):
    """Return the state of the open transaction: see TransactionState."""


class Pause(NamedTuple):
    """Wait; the reply is whether the consumer was asked to stop."""

    seconds: float


class Step(NamedTuple):
    """Name the step that was just taken."""

    name: str


TransactionState: TypeAlias = Literal["open", "broken", "ended"]
Request: TypeAlias = (
    "Ask | Transact | Fetch | Execute | Handle | Restore | InspectTransaction | Pause | Step"
)
Work: TypeAlias = Generator[Request, Any, T]


def transaction_state(conn: Connection | None) -> TransactionState:
    """Return whether a transaction can still be committed as a whole.

    It is "broken" when the database will only roll it back, and "ended" when somebody has
    committed it or rolled it back already. SQLAlchemy knows what was done through it, the driver
    what was done around it, and what the database did by itself.
    """
    if conn is None:
        return "ended"
    if conn.invalidated:
        return "broken"
    if conn.closed or not conn.in_transaction():
        return "ended"
    driver: Any = conn.connection.driver_connection
    status = getattr(getattr(driver, "info", None), "transaction_status", None)
    if status is not None:
        return {"INTRANS": "open", "IDLE": "ended"}.get(status.name, "broken")  # type: ignore[return-value]
    return "open" if getattr(driver, "in_transaction", True) else "ended"


# ── Plan ──────────────────────────────────────────────────────────────────────────────────────────


F = TypeVar("F")
E = TypeVar("E", Engine, AsyncEngine)

OnError: TypeAlias = Literal["stop", "skip"]
OnGap: TypeAlias = Literal["stop", "skip"]
AnyStream: TypeAlias = "str | Stream[Any] | AsyncStream[Any]"
StreamOrTopic: TypeAlias = "AnyStream | Topic[Any] | AsyncTopic[Any]"
Streams: TypeAlias = "StreamOrTopic | Iterable[StreamOrTopic]"


class TimeSource(Protocol):
    """Where a consumer's time comes from; the module ``time`` is one."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def time(self) -> float:
        """Return the seconds since 1970."""


class ConsumerOptions(TypedDict, total=False):
    """What may be asked of a consumer; Consumer documents each option."""

    batch: int
    start: Start
    on_error: OnError
    attempts: int
    backoff_ms: Duration
    on_gap: OnGap
    on_reset: Any
    steps: Callable[[str], None]
    time_source: TimeSource | None


@dataclass(frozen=True, slots=True)
class ConsumerPlan:
    """How a consumer was asked to work. Raises InvalidInput for what cannot be meant."""

    name: str
    database: Engine | AsyncEngine = field(repr=False)
    batch: int
    start: Start
    on_error: OnError
    attempts: int
    backoff_ms: Duration
    on_gap: OnGap
    resets: bool
    time: TimeSource = field(default=time, repr=False)

    def __post_init__(self) -> None:
        check_name(self.name, "consumer")
        check_name(self.reader, "reader")
        check_start(self.start)
        _check_from_one(self.batch, "batch", MAX_READ)
        _check_from_one(self.attempts, "attempts", MAX_OFFSET)
        check_ms(self.backoff_ms, "backoff_ms")
        _check_policy(self.on_error, "on_error", get_args(OnError))
        _check_policy(self.on_gap, "on_gap", get_args(OnGap))

    @property
    def backoff_s(self) -> float:
        """The pause after a first failure, in seconds."""
        return whole_ms(self.backoff_ms) / 1000

    @property
    def reader(self) -> str:
        """The name by which the log knows the consumer."""
        return f"consumer:{self.name}"

    def dead_letters(self, stream: str) -> str:
        """Return the name of the stream with the dead letters of a stream."""
        letters = check_name(letters_stream(stream, self.name), "stream for dead letters")
        refuse_own_name(letters, "stream for dead letters")
        return letters


@dataclass(slots=True)
class ConsumerStats:
    """What a consumer has done since it was made.

    ``overtaken`` counts batches that another process of the same name had applied first; ``missed``
    counts offsets evicted before they were read, ``gaps`` are the latest of them as (stream, first,
    last); ``dead`` counts messages that went to the dead letters.
    """

    handled: int = 0
    batches: int = 0
    resets: int = 0
    overtaken: int = 0
    missed: int = 0
    dead: int = 0
    gaps: list[tuple[str, int, int]] = field(default_factory=list)

    def __add__(self, other: ConsumerStats) -> ConsumerStats:
        names = (one.name for one in fields(self))
        return ConsumerStats(*(getattr(self, name) + getattr(other, name) for name in names))


def streams_of(streams: Streams) -> list[StreamOrTopic]:
    """Return the streams and topics that a consumer was given, as a list."""
    if isinstance(streams, str | Stream | AsyncStream | Topic | AsyncTopic):
        return [streams]
    return list(streams)


def coders_of(given: list[StreamOrTopic]) -> dict[str, Coder[Any] | None]:
    """Return the codecs of streams and topics that were given as objects, by their names."""
    return {one.name: one.codec for one in given if not isinstance(one, str)}


def names_of(given: list[StreamOrTopic]) -> tuple[str, ...]:
    """Return the names of streams and topics."""
    names = tuple(
        one.name
        if isinstance(one, Stream | AsyncStream | Topic | AsyncTopic)
        else check_name(one, "stream")
        for one in given
    )
    if not names or len(set(names)) < len(names):
        raise InvalidInput(f"a consumer needs one stream or several different ones, not {names!r}")
    return names


def for_each(names: Iterable[str], given: F | Mapping[str, F], what: str) -> dict[str, F]:
    """Return the function of each stream: the same one, or its own out of a mapping."""
    if not isinstance(given, Mapping):
        functions = dict.fromkeys(names, given)
    else:
        functions = {name: given[name] for name in names if name in given}
        if missing := [name for name in names if name not in given]:
            raise InvalidInput(f"there is no {what} for stream {missing[0]!r}; add one")
    for function in functions.values():
        if not callable(function):
            raise InvalidInput(f"{what} must be a function, not {function!r}")
    return functions


def one_of(names: tuple[str, ...], name: str | None) -> str:
    """Return the stream that is meant; it need not be named when there is only one."""
    meant = names[0] if name is None and len(names) == 1 else name
    if meant not in names:
        raise InvalidInput(f"stream must be one of {', '.join(names)}, not {name!r}")
    return meant


def engine_of(outbox: Any, kind: type[E]) -> E:
    """Return the engine of an outbox, or the engine that was given; raises InvalidInput."""
    engine = outbox if isinstance(outbox, AsyncEngine) else getattr(outbox, "engine", outbox)
    if not isinstance(engine, kind):
        who, cure = "a Consumer", "with an AsyncEngine use AsyncConsumer"
        if kind is AsyncEngine:
            who, cure = "an AsyncConsumer", "make one with create_async_engine"
        raise InvalidInput(
            f"{who} needs an Outbox on an {kind.__name__}, or that engine, not a "
            f"{type(outbox).__name__}; {cure}"
        )
    check_dialect(engine.dialect)
    return engine


def _check_from_one(value: int, what: str, most: int) -> None:
    if check_count(value, what, most) == 0:
        raise InvalidInput(f"{what} must be at least 1")


def _check_policy(value: str, what: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidInput(f"{what} must be one of {', '.join(map(repr, allowed))}, not {value!r}")
