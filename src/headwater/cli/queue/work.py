"""``headwater queue work``: a command for each message, several at a time."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.logging_lines import logged_lines
from headwater.cli.monitoring_options import MonitoringFlags
from headwater.cli.option_groups import grouped
from headwater.cli.options import StoreUrl, connected, refused
from headwater.cli.queue.cli_types import QueueName

if TYPE_CHECKING:
    from headwater.queue.types import Delivery


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
