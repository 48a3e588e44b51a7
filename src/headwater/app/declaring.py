"""What a decorator of an application takes and returns, for readers and type checkers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar

from headwater.app.worker_part import Backoff
from headwater.kernel.inputs import Span

if TYPE_CHECKING:
    from headwater.kernel.inputs import Limits
    from headwater.log.handles import Start
    from headwater.log.topics import TopicStart

M = TypeVar("M")
R = TypeVar("R")
H = TypeVar("H", bound="Callable[[Any, Any], object]")


class HandlerOf(Protocol[M]):
    """Takes a handler of such messages, plain or async, and returns it as it is."""

    def __call__(self, handler: Callable[[M], R], /) -> Callable[[M], R]:
        """Declare the handler."""


class BatchHandlerOf(Protocol):
    """Takes a handler of a connection and a list of messages, and returns it as it is."""

    def __call__(self, handler: H, /) -> H:
        """Declare the handler."""


class WorkerDeclaration(TypedDict, total=False):
    """What may be said of any worker: options of Worker or QueueWorker, and of its part.

    ``name`` is that of the handler unless it is given. With ``processes`` the part runs in so many
    processes of its own. Spans of time may be texts, as "30s".
    """

    name: str
    processes: int | None
    concurrency: int
    ack_ms: Span
    max_attempts: int | None
    timeout: Span
    backoff: Backoff
    backoff_ms: Span
    longest_backoff_ms: Span
    limits: Limits


class GroupDeclaration(WorkerDeclaration, total=False):
    """What may be said of the worker of a stream."""

    start: Start
    max_pending: int
    dead_letters: bool | str
    expire_ms: Span
    ordered: bool


class TopicDeclaration(WorkerDeclaration, total=False):
    """What may be said of the worker of a topic."""

    partitions: int
    start: TopicStart
    max_pending: int
    dead_letters: bool | str
    expire_ms: Span
    ordered: bool
