"""Messages in and out of a queue: push, pop, ack, nack."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli import line_input, output
from headwater.cli.options import AsJson, StoreUrl, connected
from headwater.cli.queue.cli_types import QueueName, known_queue
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.queue.queue import Queue
    from headwater.queue.types import Delivery

_Receipts = Annotated[
    list[str], typer.Argument(metavar="RECEIPT...", help="As pop --ack-ms --json shows them.")
]


def push(
    name: QueueName,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUE...", help="A message each; without any, lines of stdin."),
    ] = None,
    delay_ms: Annotated[
        int, typer.Option(min=0, help="Hand them out no earlier than so long from now.")
    ] = 0,
    priority: Annotated[
        int, typer.Option(min=-100, max=100, help="Higher ones are handed out first.")
    ] = 0,
    ttl_ms: Annotated[
        int | None, typer.Option(min=1, help="Do not hand them out any more after so long.")
    ] = None,
    dedupe: Annotated[
        str | None,
        typer.Option(help="Add nothing if this key was pushed within the last hour; one VALUE."),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, max=100_000, help="Lines from stdin: at most so many at once.")
    ] = 1000,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Put messages into a queue: each VALUE, or, without any, each line of stdin.

    Lines are pushed as they come, in batches that are in the queue whole or not at all.
    """
    if dedupe is not None and len(values or ()) != 1:
        raise typer.BadParameter("--dedupe is for one message: give one VALUE")
    with connected(store) as hw:
        queue = hw.queue(name)
        if not values:
            _push_lines(queue, batch, delay_ms, priority, ttl_ms, as_json)
            return
        ids = queue.push_many(
            [os.fsencode(value) for value in values],
            delay_ms=delay_ms,
            priority=priority,
            ttl_ms=ttl_ms,
            dedupe=None if dedupe is None else [dedupe],
        )
    if as_json:
        output.show_json(*({"queue": name, "id": found} for found in ids))
    else:
        for found in ids:
            output.say(found)


def _push_lines(
    queue: Queue, batch: int, delay_ms: int, priority: int, ttl_ms: int | None, as_json: bool
) -> None:
    """Push a message per line and say how many; also when it ends by an error or by Ctrl-C."""
    pushed = 0
    try:
        for some in line_input.batches(sys.stdin.buffer, batch):
            queue.push_many(some, delay_ms=delay_ms, priority=priority, ttl_ms=ttl_ms)
            pushed += len(some)
    except (HeadwaterError, KeyboardInterrupt):
        if pushed:
            output.warn(f"pushed before that: {pushed} messages")
        raise
    if as_json:
        output.show_json({"queue": queue.name, "pushed": pushed})
    else:
        output.say(f"pushed {pushed} messages")


def pop(
    name: QueueName,
    count: Annotated[int, typer.Option("--count", "-c", min=0, help="How many at most.")] = 1,
    ack_ms: Annotated[
        int | None,
        typer.Option(min=1, help="Let them come again after so long unless they are acknowledged."),
    ] = None,
    block_ms: Annotated[
        int, typer.Option(min=0, help="Wait so long for a first message to come.")
    ] = 0,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Take messages out of a queue; with --ack-ms they come again unless acknowledged."""
    with known_queue(store, name) as queue:
        found = queue.pop(count, ack_ms=ack_ms, block_ms=block_ms)
    if as_json:
        output.show_json(
            *(
                {
                    "id": delivery.id,
                    **output.value_json(delivery.value),
                    "attempt": delivery.attempt,
                    "receipt": delivery.receipt or None,
                }
                for delivery in found
            )
        )
    elif found:
        headings = ["id", "attempt", *(["receipt"] if ack_ms else []), "value"]
        output.show_table(
            headings,
            [(d.id, d.attempt, *([d.receipt] if ack_ms else []), d.value) for d in found],
        )
    else:
        output.warn("nothing to pop")


def ack(
    name: QueueName, receipts: _Receipts, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Say that messages are done, by their receipts; those that are out of date count nothing."""
    with known_queue(store, name) as queue:
        count = queue.ack(*map(_delivery, receipts))
    _tell("acknowledged", count, as_json)


def nack(
    name: QueueName,
    receipts: _Receipts,
    delay_ms: Annotated[int, typer.Option(min=0, help="Come again after so long.")] = 0,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Give messages back as failed, by their receipts."""
    with known_queue(store, name) as queue:
        count = queue.nack(*map(_delivery, receipts), delay_ms=delay_ms)
    _tell("given back", count, as_json)


def _delivery(receipt: str) -> Delivery:
    from headwater.queue.acks import delivery_of

    return delivery_of(receipt)


def _tell(deed: str, count: int, as_json: bool) -> None:
    if as_json:
        output.show_json({"count": count})
    else:
        output.say(f"{deed}: {count}")
