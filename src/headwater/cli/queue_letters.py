"""Dead letters of a queue: look at them, return them, remove them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.letter_options import AtMost, AtRate, LetterFlags
from headwater.cli.letter_output import confirm_all
from headwater.cli.message_output import show_items
from headwater.cli.option_groups import grouped
from headwater.cli.options import AsJson, Count, QueueName, StoreUrl, Yes, known_queue, refused

_Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID...", help="The dead letters; without any, all of them."),
]


@grouped
def dead(
    *,
    name: QueueName,
    count: Count = 100,
    fitting: LetterFlags,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the dead letters, which are messages that were given up, the oldest first."""
    matching = fitting.filter()
    with known_queue(store, name) as queue:
        found = queue.dead(count, matching=matching)
        show_items(found, as_json, "given up", "no dead letters")


@grouped
def redrive(
    *,
    name: QueueName,
    ids: _Ids = None,
    count: AtMost = None,
    fitting: LetterFlags,
    rate: AtRate = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Return dead letters to the queue; their attempts are counted from 1 again."""
    chosen = fitting.arguments(ids or None, count, rate)
    _check_ids(ids or ())
    with known_queue(store, name) as queue:
        done = queue.redrive(**chosen)
    view = views.queues.QueueRedrivenView(queue=name, returned=done)
    output.answer(view, f"brought back: {done}", as_json)


@grouped
def discard(
    *,
    name: QueueName,
    ids: _Ids = None,
    count: AtMost = None,
    fitting: LetterFlags,
    rate: AtRate = None,
    yes: Yes = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Remove dead letters permanently; asks before it removes all."""
    chosen = fitting.arguments(ids or None, count, rate)
    _check_ids(ids or ())
    with known_queue(store, name) as queue:
        if not ids and count is None:
            confirm_all("Remove", name, queue.stats().dead, chosen["matching"], yes)
        done = queue.discard(**chosen)
    view = views.queues.DiscardedView(queue=name, discarded=done)
    output.answer(view, f"discarded: {done}", as_json)


def _check_ids(ids: Sequence[str]) -> None:
    """Refuse what cannot be the id of a message, before anything is sent."""
    for word in ids:
        if not (word.isascii() and word.isdecimal()):
            raise refused(
                f"{word!r} is not the id of a message; copy it as `headwater queue peek` or "
                "`headwater queue dead` prints it",
                "ID",
            )
