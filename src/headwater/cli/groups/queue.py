"""``headwater queue``: push, pop, work off and look after queues."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headwater import views
from headwater.cli import line_input, output
from headwater.cli.derived import add_commands, limit_command
from headwater.cli.groups import letters
from headwater.cli.options import (
    AsJson,
    BlockMs,
    Count,
    GivenHeader,
    QueueName,
    StoreUrl,
    connected,
    grouped,
    headers_of,
    interruptible,
    known_queue,
    refused,
)
from headwater.cli.output import show_items
from headwater.cli.run import logged_lines
from headwater.cli.server_options import MonitoringFlags
from headwater.doors.catalogue import QUEUE
from headwater.errors import HeadwaterError
from headwater.queue.keys import MAX_PUSH_MESSAGES

if TYPE_CHECKING:
    from headwater.queue.queue import Queue
    from headwater.queue.types import Delivery, QueueStats

_TIMES = {"ready": "due", "delayed": "due", "unacked": "deadline", "dead": "given up"}


def list_queues(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List all queues, with their messages by state."""
    with connected(store) as hw:
        found = hw.store.run(views.overview.all_queues())
    output.show_list(
        found,
        views.queues.QueueStatsView.of,
        {
            "queue": lambda facts: facts.name,
            "ready": lambda facts: facts.ready,
            "delayed": lambda facts: facts.delayed,
            "unacked": lambda facts: facts.unacked,
            "dead": lambda facts: facts.dead,
            "damaged": lambda facts: facts.damaged,
            "oldest": lambda facts: output.age_text(facts.oldest_ms),
            "state": _state,
        },
        as_json,
        nothing="no queues: a queue is created by its first push",
        styles={"paused": "yellow", "runs": "green"},
    )


def _state(facts: QueueStats) -> str:
    return "paused" if facts.paused else "runs"


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


class CommandFailed(Exception):
    """The command of a message ended with an exit code other than 0."""


@grouped
def work(
    name: QueueName,
    command: Annotated[
        str,
        typer.Option(
            "--exec",
            metavar="CMD",
            help="The command for each message, run by a shell; the value is its standard input.",
            show_default=False,
        ),
    ],
    concurrency: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="N", help="Run up to N commands at once.")
    ] = 1,
    ack_ms: Annotated[
        int,
        typer.Option(
            min=100, help="Milliseconds until the messages of a worker that died are redelivered."
        ),
    ] = 30_000,
    store: StoreUrl = None,
    *,
    monitoring: MonitoringFlags,
) -> None:
    """Run a command for each message of a queue until Ctrl-C or SIGTERM.

    A message is acknowledged when its command exits with 0, and redelivered otherwise. The command
    finds its id and attempt in $HEADWATER_ID and $HEADWATER_ATTEMPT. When it stops, the worker
    returns messages whose command has not started, waits for running commands, and exits with 0.
    """
    from headwater.kernel.stopping import stop_on_signals
    from headwater.workers.queue_worker import QueueWorker

    if not command.strip():
        # A shell exits with 0 for nothing, and every message would be acknowledged.
        raise refused("it is empty; give the command that handles a message", "--exec")

    def run(delivery: Delivery) -> None:
        facts = {"HEADWATER_ID": delivery.id, "HEADWATER_ATTEMPT": str(delivery.attempt)}
        # A session of its own: Ctrl-C is for the worker, which lets the command end.
        done = subprocess.run(
            command,
            shell=True,
            input=delivery.value,
            env=os.environ | facts,
            check=False,
            start_new_session=True,
        )
        if done.returncode:
            raise CommandFailed(f"exit code {done.returncode}")

    with connected(store, runs_on=True) as hw:
        worker = QueueWorker(hw.queue(name), run, concurrency=concurrency, ack_ms=ack_ms)
        with (
            logged_lines("headwater.queue"),
            logged_lines("headwater.workers"),
            stop_on_signals(worker.stop),
            monitoring.watched(store),
        ):
            worker.run()


def stats(name: QueueName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show the messages of a queue by state, their age, rates and settings."""
    with known_queue(store, name) as queue:
        facts = queue.stats()
    if as_json:
        output.show_json(views.queues.QueueStatsView.of(facts))
        return
    output.show_facts(
        [
            ("queue", facts.name),
            ("state", _state(facts)),
            ("ready", facts.ready),
            ("delayed", facts.delayed),
            ("unacked", facts.unacked),
            ("dead", facts.dead),
            ("damaged", facts.damaged),
            ("oldest ready", output.age_text(facts.oldest_ms)),
            ("oldest delayed", output.age_text(facts.oldest_delayed_ms)),
            ("oldest unacked", output.age_text(facts.oldest_unacked_ms)),
            ("oldest dead", output.age_text(facts.oldest_dead_ms)),
            ("waited", _waited(facts)),
            ("pushed", f"{facts.pushed}, now {facts.pushed_per_s:.1f}/s"),
            ("popped", f"{facts.popped}, now {facts.popped_per_s:.1f}/s"),
            ("acked", f"{facts.acked}, now {facts.acked_per_s:.1f}/s"),
            ("expired", facts.expired),
            ("waiting consumers", facts.waiting),
            ("settings", facts.settings),
            ("limits", facts.limits),
        ]
    )


def _waited(facts: QueueStats) -> str | None:
    if not sum(facts.waits):
        return "not kept since the server started" if facts.popped else None
    spans = [("half", 0.5), ("95%", 0.95), ("99%", 0.99)]
    bounds = [(words, facts.waited_up_to_ms(share)) for words, share in spans]
    return ", ".join(
        f"{words} over a day" if bound is None else f"{words} up to {bound / 1000:g} s"
        for words, bound in bounds
    )


def peek(
    name: QueueName,
    count: Count = 10,
    state: Annotated[
        Literal["ready", "delayed", "unacked", "dead", "damaged"],
        typer.Option(help="Which messages."),
    ] = "ready",
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the messages that come first, without taking them."""
    with known_queue(store, name) as queue:
        found = queue.peek(count, state=state)
    show_items(found, as_json, _TIMES.get(state, "due"), f"no message is {state}")


app = typer.Typer()
app.command("list")(list_queues)
app.command("push")(push)
app.command("pop")(pop)
app.command("work")(work)
app.command("stats")(stats)
app.command("peek")(peek)
app.command("limit")(limit_command(QUEUE, known_queue, "max_in_flight_per_key", "rate_per_key"))
add_commands(app, QUEUE, known_queue, dead=letters.show_queue_letters)
