"""Dead letters of a queue: look at them, return them, remove them."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.letter_options import (
    AtRate,
    BuriedAfter,
    BuriedBefore,
    MinAttempts,
    WithError,
    check_one_choice,
    letter_filter,
)
from headwater.cli.message_options import AtMost
from headwater.cli.options import AsJson, Count, StoreUrl, Yes, confirm
from headwater.cli.queue.cli_types import QueueName, check_ids, known_queue, show_items
from headwater.queue.limits import MAX_LETTERS

_Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID...", help="The dead letters; without any, all of them."),
]


def dead(
    name: QueueName,
    count: Count = 100,
    error: WithError = None,
    min_attempts: MinAttempts = None,
    after: BuriedAfter = None,
    before: BuriedBefore = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the dead letters, which are messages that were given up, the oldest first."""
    matching = letter_filter(error, min_attempts, after, before)
    with known_queue(store, name) as queue:
        found = queue.dead(count, matching=matching)
        show_items(found, as_json, "given up", "no dead letters")


def redrive(
    name: QueueName,
    ids: _Ids = None,
    count: AtMost = None,
    error: WithError = None,
    min_attempts: MinAttempts = None,
    after: BuriedAfter = None,
    before: BuriedBefore = None,
    rate: AtRate = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Return dead letters to the queue; their attempts are counted from 1 again."""
    matching = letter_filter(error, min_attempts, after, before)
    check_one_choice(ids, matching)
    check_ids(ids or ())
    most = MAX_LETTERS if count is None else count
    with known_queue(store, name) as queue:
        done = queue.redrive(ids or None, count=most, matching=matching, rate_per_s=rate)
    view = views.queues.QueueRedrivenView(queue=name, returned=done)
    output.answer(view, f"brought back: {done}", as_json)


def discard(
    name: QueueName,
    ids: _Ids = None,
    count: AtMost = None,
    error: WithError = None,
    min_attempts: MinAttempts = None,
    after: BuriedAfter = None,
    before: BuriedBefore = None,
    rate: AtRate = None,
    yes: Yes = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Remove dead letters permanently; asks before it removes all."""
    matching = letter_filter(error, min_attempts, after, before)
    check_one_choice(ids, matching)
    check_ids(ids or ())
    with known_queue(store, name) as queue:
        if not ids and count is None:
            fitting = " that fit" if matching else ""
            confirm(f"Remove all dead letters of {name}{fitting}, of {queue.stats().dead}?", yes)
        most = MAX_LETTERS if count is None else count
        done = queue.discard(ids or None, count=most, matching=matching, rate_per_s=rate)
    view = views.queues.DiscardedView(queue=name, discarded=done)
    output.answer(view, f"discarded: {done}", as_json)
