"""``headwater queue work``: a command for each message, several at a time."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli import output
from headwater.cli.options import StoreUrl, connected
from headwater.cli.queue.cli_types import QueueName

if TYPE_CHECKING:
    from headwater.queue.types import Delivery
    from headwater.workers.queue_worker import QueueWorker


class CommandFailed(Exception):
    """The command of a message ended with another code than 0."""


def work(
    name: QueueName,
    command: Annotated[
        str,
        typer.Option(
            "--exec",
            metavar="CMD",
            help="What to run for each message, by a shell; the value is its standard input.",
            show_default=False,
        ),
    ],
    concurrency: Annotated[
        int, typer.Option(min=1, max=10_000, help="How many commands run at once.")
    ] = 1,
    ack_ms: Annotated[
        int,
        typer.Option(min=100, help="After a worker died, its messages come again so much later."),
    ] = 30_000,
    store: StoreUrl = None,
) -> None:
    """Run a command for each message of a queue until Ctrl-C or SIGTERM.

    A message is done when its command exits with 0, and comes again otherwise. The command finds
    its id and attempt in $HEADWATER_ID and $HEADWATER_ATTEMPT. To stop, what was not begun is
    given back at once, and running commands are waited for.
    """
    from headwater.workers.queue_worker import QueueWorker

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

    with connected(store) as hw:
        worker = QueueWorker(hw.queue(name), run, concurrency=concurrency, ack_ms=ack_ms)
        with _told(), _stopped_by_signals(worker):
            worker.run()


@contextmanager
def _stopped_by_signals(worker: QueueWorker) -> Iterator[None]:
    signals = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: worker.stop()) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def _told() -> Iterator[None]:
    """Print what the worker logs, a line each, on standard error."""
    log, teller = logging.getLogger("headwater.queue"), _Teller()
    log.addHandler(teller)
    try:
        yield
    finally:
        log.removeHandler(teller)


class _Teller(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        output.warn(f"{record.getMessage()}: {error}" if error else record.getMessage())
