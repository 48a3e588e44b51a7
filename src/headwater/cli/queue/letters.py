"""Dead letters of a queue: look at them, bring them back, forget them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli import output
from headwater.cli.options import AsJson, StoreUrl
from headwater.cli.queue.cli_types import QueueName, known_queue, show_items

if TYPE_CHECKING:
    from headwater.queue.queue import Queue
    from headwater.queue.types import QueueItem

_Ids = Annotated[
    list[str] | None, typer.Argument(metavar="ID...", help="Only these; without any, all.")
]


def dead(
    name: QueueName,
    count: Annotated[int, typer.Option("--count", "-c", min=0, help="How many at most.")] = 100,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the messages that were given up, the oldest first."""
    with known_queue(store, name) as queue:
        show_items(queue.dead(count), as_json, "given up")


def redrive(
    name: QueueName, ids: _Ids = None, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Bring dead letters back; their attempts begin anew."""
    with known_queue(store, name) as queue:
        count = queue.redrive(_letters(queue, ids))
    _tell("brought back", count, as_json)


def discard(
    name: QueueName, ids: _Ids = None, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Forget dead letters."""
    with known_queue(store, name) as queue:
        count = queue.discard(_letters(queue, ids))
    _tell("discarded", count, as_json)


def _letters(queue: Queue, ids: list[str] | None) -> list[QueueItem] | None:
    if not ids:
        return None
    queue.dead(0)  # notes what was given up just now
    wanted = set(ids)
    return [item for item in queue.scan("dead") if item.id in wanted]


def _tell(deed: str, count: int, as_json: bool) -> None:
    if as_json:
        output.show_json({"count": count})
    else:
        output.say(f"{deed}: {count}")
