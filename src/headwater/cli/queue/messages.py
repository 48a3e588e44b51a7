"""Messages in and out of a queue: push, pop, ack, nack."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import line_input, output
from headwater.cli.message_options import GivenHeader, headers_of
from headwater.cli.options import (
    AsJson,
    BlockMs,
    Count,
    NackDelayMs,
    StoreUrl,
    connected,
    interruptible,
)
from headwater.cli.queue.cli_types import QueueName, known_queue
from headwater.errors import HeadwaterError
from headwater.queue.keys import MAX_PUSH_MESSAGES

if TYPE_CHECKING:
    from headwater.queue.queue import Queue
    from headwater.queue.types import Delivery

_Receipts = Annotated[
    list[str], typer.Argument(metavar="RECEIPT...", help="Receipts, as `pop --ack-ms` prints them.")
]


def push(
    name: QueueName,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUE...", help="A message each; without any, the lines of stdin."),
    ] = None,
    delay_ms: Annotated[
        int, typer.Option(min=0, help="Milliseconds until they may be popped.")
    ] = 0,
    priority: Annotated[
        int, typer.Option(min=-100, max=100, help="Higher priorities are popped first.")
    ] = 0,
    ttl_ms: Annotated[
        int | None, typer.Option(min=1, help="Milliseconds after which they are dropped.")
    ] = None,
    dedupe: Annotated[
        str | None,
        typer.Option(help="One VALUE: push nothing if this key was pushed in the last hour."),
    ] = None,
    header: GivenHeader = None,
    batch: Annotated[
        int,
        typer.Option("--batch", min=1, max=MAX_PUSH_MESSAGES, help="Lines of stdin in one batch."),
    ] = 1000,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Push messages to a queue: each VALUE, or, without any, each line of stdin.

    Lines are pushed as they arrive, in batches that are pushed as a whole or not at all. After an
    error or a signal, standard error says how much was pushed before.
    """
    if dedupe is not None and len(values or ()) != 1:
        raise typer.BadParameter("--dedupe is for one message: give one VALUE")
    headers = headers_of(header)
    with connected(store) as hw:
        queue = hw.queue(name)
        if not values:
            with interruptible():
                _push_lines(queue, batch, delay_ms, priority, ttl_ms, headers, as_json)
            return
        ids = queue.push_many(
            [os.fsencode(value) for value in values],
            delay_ms=delay_ms,
            priority=priority,
            ttl_ms=ttl_ms,
            dedupe=None if dedupe is None else [dedupe],
            headers=headers,
        )
    for id_ in ids:
        output.answer(views.queues.PushedView(queue=name, id=id_), id_, as_json)


def _push_lines(
    queue: Queue,
    batch: int,
    delay_ms: int,
    priority: int,
    ttl_ms: int | None,
    headers: dict[str, bytes],
    as_json: bool,
) -> None:
    """Push a message per line and print how many; even when an error or Ctrl-C ends it."""
    pushed = 0
    try:
        for some in line_input.batches(sys.stdin.buffer, batch):
            queue.push_many(
                some, delay_ms=delay_ms, priority=priority, ttl_ms=ttl_ms, headers=headers
            )
            pushed += len(some)
    except (HeadwaterError, KeyboardInterrupt):
        if pushed:
            output.warn(f"pushed before that: {output.counted(pushed, 'message')}")
        raise
    done = views.queues.LinesPushedView(queue=queue.name, pushed=pushed)
    output.answer(done, f"pushed {output.counted(pushed, 'message')}", as_json)


def pop(
    name: QueueName,
    count: Count = 1,
    ack_ms: Annotated[
        int | None,
        typer.Option(min=1, help="Milliseconds until they are redelivered unless acknowledged."),
    ] = None,
    block_ms: BlockMs = 0,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Take messages out of a queue; with --ack-ms they are redelivered unless acknowledged.

    Without --ack-ms, a message that was popped is gone at once, and needs no ack.
    """
    with known_queue(store, name) as queue:
        found = queue.pop(count, ack_ms=ack_ms, block_ms=block_ms)
        paused = not found and queue.stats().paused
    if as_json:
        output.show_json(*map(views.queues.DeliveryView.of, found))
    elif found:
        columns: dict[str, Callable[[Delivery], object]] = {
            "id": lambda delivery: delivery.id,
            "attempt": lambda delivery: delivery.attempt,
        }
        if ack_ms:
            columns["receipt"] = lambda delivery: delivery.receipt
        if any(delivery.headers for delivery in found):
            columns["headers"] = lambda delivery: output.headers_text(delivery.headers)
        columns["value"] = lambda delivery: delivery.value
        output.show_table(list(columns), [[cell(d) for cell in columns.values()] for d in found])
    else:
        output.warn("nothing to pop" + (": the queue is paused" if paused else ""))


def ack(
    name: QueueName, receipts: _Receipts, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Acknowledge messages by their receipts; a receipt that is out of date changes nothing."""
    with known_queue(store, name) as queue:
        count = queue.ack(receipts)
    done = views.queues.QueueAckedView(queue=name, acked=count)
    output.answer(done, f"acknowledged: {count}", as_json)


def nack(
    name: QueueName,
    receipts: _Receipts,
    delay_ms: NackDelayMs = 0,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Return messages as failed, by their receipts, to be redelivered."""
    with known_queue(store, name) as queue:
        count = queue.nack(receipts, delay_ms=delay_ms)
    done = views.queues.QueueNackedView(queue=name, nacked=count)
    output.answer(done, f"given back: {count}", as_json)


def release(
    name: QueueName, receipts: _Receipts, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Return messages untried, by their receipts: that attempt does not count."""
    with known_queue(store, name) as queue:
        count = queue.release(receipts)
    done = views.queues.QueueReleasedView(queue=name, released=count)
    output.answer(done, f"released: {count}", as_json)
