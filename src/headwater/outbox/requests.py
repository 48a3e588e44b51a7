"""What a consumer asks of whatever runs it: the seam between what it does and its I/O.

Work is a generator: it yields requests, is sent their replies, and returns its result. It touches
neither the log nor the database, so that the sync and the async consumer run the same definition.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import Connection, Executable

from headwater.store.call import Operation

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
