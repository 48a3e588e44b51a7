"""What the commands of queues take and show in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import completing, output
from headwater.cli.options import connected, queue_of, refused

if TYPE_CHECKING:
    from headwater.queue.queue import Queue
    from headwater.queue.types import QueueItem

QueueName = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE",
        help="Name of the queue.",
        show_default=False,
        autocompletion=completing.queues,
    ),
]


@contextmanager
def known_queue(url: str | None, name: str) -> Iterator[Queue]:
    """Yield a queue that exists; raises UnknownQueue, as most often the name is mistyped."""
    with connected(url) as hw:
        yield queue_of(hw, name)


def check_ids(ids: Sequence[str]) -> Sequence[str]:
    """Refuse what cannot be the id of a message, before anything is sent."""
    for word in ids:
        if not (word.isascii() and word.isdecimal()):
            raise refused(
                f"{word!r} is not the id of a message; copy it as `headwater queue peek` or "
                "`headwater queue dead` prints it",
                "ID",
            )
    return ids


def show_items(items: list[QueueItem], as_json: bool, time: str, nothing: str) -> None:
    """Print messages as they are stored in a queue; ``time`` says what their time is."""
    columns: dict[str, Callable[[QueueItem], object]] = {
        "id": lambda item: item.id,
        "priority": lambda item: item.priority,
        "attempt": lambda item: item.attempt,
        "pushed": lambda item: output.time_text(item.pushed_ms),
        time: lambda item: output.time_text(item.due_ms or 0),
    }
    if any(item.headers for item in items):
        columns["headers"] = lambda item: output.headers_text(item.headers)
    columns["value"] = lambda item: item.value
    if any(item.cause for item in items):
        columns["cause"] = lambda item: item.cause and str(item.cause)
    # Behind the five above: what may be long, and wraps.
    fold = len(columns) - 5
    output.show_list(
        items, views.queues.QueueMessageView.of, columns, as_json, nothing=nothing, fold=fold
    )
