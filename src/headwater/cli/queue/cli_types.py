"""What the commands of queues take and show in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli import output
from headwater.cli.options import connected
from headwater.errors import UnknownQueue

if TYPE_CHECKING:
    from headwater.queue.queue import Queue
    from headwater.queue.types import QueueItem

QueueName = Annotated[
    str, typer.Argument(metavar="QUEUE", help="Name of the queue.", show_default=False)
]


@contextmanager
def known_queue(url: str | None, name: str) -> Iterator[Queue]:
    """Give a queue that exists; a name that was never pushed to is taken for a slip of the pen.

    Raises UnknownQueue.
    """
    with connected(url) as hw:
        queue = hw.queue(name)
        if not queue.stats().exists:
            raise UnknownQueue(name)
        yield queue


def item_json(item: QueueItem) -> dict[str, Any]:
    """Give a message as it lies in a queue for JSON."""
    return {
        "id": item.id,
        **output.value_json(item.value),
        "state": item.state,
        "priority": item.priority,
        "attempt": item.attempt,
        "pushed_ms": item.pushed_ms,
        "due_ms": item.due_ms,
        "expires_ms": item.expires_ms,
    }


def show_items(items: list[QueueItem], as_json: bool, time: str) -> None:
    """Print messages as they lie in a queue; ``time`` says what their time is."""
    if as_json:
        output.show_json(*(item_json(item) for item in items))
        return
    output.show_table(
        ["id", "priority", "attempt", "pushed", time, "value"],
        [
            (
                item.id,
                item.priority,
                item.attempt,
                output.time_text(item.pushed_ms),
                output.time_text(item.due_ms or 0),
                item.value,
            )
            for item in items
        ],
    )
