"""Dead letters of a queue: look at them, return them, remove them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.options import AsJson, Count, StoreUrl, Yes, confirm
from headwater.cli.queue.cli_types import QueueName, known_queue, show_items

if TYPE_CHECKING:
    from headwater.queue.queue import Queue
    from headwater.queue.types import QueueItem

_Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID...", help="The dead letters; without any, all of them."),
]


def dead(
    name: QueueName, count: Count = 100, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Show the dead letters, which are messages that were given up, the oldest first."""
    with known_queue(store, name) as queue:
        show_items(queue.dead(count), as_json, "given up", "no dead letters")


def redrive(
    name: QueueName, ids: _Ids = None, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Return dead letters to the queue; their attempts begin anew."""
    with known_queue(store, name) as queue:
        count = queue.redrive(_letters(queue, ids))
    done = views.queues.QueueRedrivenView(queue=name, returned=count)
    output.answer(done, f"brought back: {count}", as_json)


def discard(
    name: QueueName,
    ids: _Ids = None,
    yes: Yes = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Remove dead letters, for ever; asks before it removes all."""
    with known_queue(store, name) as queue:
        if not ids:
            confirm(f"Remove all {queue.stats().dead} dead letters of {name}?", yes)
        count = queue.discard(_letters(queue, ids))
    done = views.queues.DiscardedView(queue=name, discarded=count)
    output.answer(done, f"discarded: {count}", as_json)


def _letters(queue: Queue, ids: list[str] | None) -> list[QueueItem] | None:
    if not ids:
        return None
    queue.dead(0)  # makes dead letters of what was given up just now
    wanted = set(ids)
    return [item for item in queue.scan("dead") if item.id in wanted]
