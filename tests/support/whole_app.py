"""An application with a part of every kind, whose handlers note what they do in files of their own.

Rows of an outbox become messages of a stream. One worker handles them in the order of each tag, in
two processes, and pushes each to a queue, which another worker handles; a consumer applies them to
a table of the database; a timed job ticks. ``headwater run tests.support.whole_app:app``.

While the file ``gate`` is there, workers that have begun do not end. A file ``die PART STEP`` kills
the process of the first handler that comes to that step.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa

import headwater
from headwater import App, Delivery, DueRun, Message

NAME = os.environ.get("WHOLE_NAME", "whole")
FOLDER = Path(os.environ.get("WHOLE_FOLDER", "."))
# Only a clean end, or a clock that is moved, returns what was in hand.
HELD = "10m"
GROUP = "in-order"
EVERY_MS = 180_000

# Without a key: a message that is applied twice has two rows.
ledger = sa.Table("ledger", sa.MetaData(), sa.Column("at", sa.BigInteger), sa.Column("v", sa.Text))
app = App()


@cache
def store() -> headwater.Headwater:
    """Return the client by which handlers write."""
    return headwater.connect()


def note(page: str, line: str) -> None:
    """Append a line, whole, to a page of notes."""
    file = os.open(FOLDER / page, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def may_die(part: str, step: str) -> None:
    """Die here if that was ordered, and nobody else did."""
    try:
        (FOLDER / f"die {part} {step}").unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def is_shut() -> bool:
    """Return whether handlers of workers wait."""
    return (FOLDER / "gate").exists()


@app.worker(stream=NAME, group=GROUP, ordered=True, processes=2, ack_ms=HELD, backoff="10ms")
def in_order(message: Message) -> None:
    may_die("in_order", "first")
    note("in_order", f"begin {message.tag} {message.offset}")
    if message.offset % 17 == 0 and message.attempt == 1:
        raise LookupError("as it does the first time")
    while is_shut():
        time.sleep(0.02)
    store().queue(NAME).push(message.value)
    may_die("in_order", "middle")
    note("in_order", f"done {message.tag} {message.offset}")
    may_die("in_order", "last")


@app.worker(queue=NAME, ack_ms=HELD, backoff="10ms")
async def from_queue(message: Delivery) -> None:
    may_die("from_queue", "first")
    while is_shut():  # noqa: ASYNC110  another process opens the gate
        await asyncio.sleep(0.02)
    note("from_queue", message.value.decode())
    may_die("from_queue", "last")


@app.consumer("apply", stream=NAME, batch=20)
def apply(conn: sa.Connection, messages: list[Any]) -> None:
    may_die("apply", "first")
    rows = [{"at": message.offset, "v": message.value.decode()} for message in messages]
    conn.execute(ledger.insert(), rows)
    may_die("apply", "last")


@app.every(EVERY_MS, missed="all", overlap="allow", max_attempts=1000)
def tick(run: DueRun) -> None:
    words = f"{run.due_ms} {run.attempt} {int(run.by_hand)}"
    may_die("tick", "first")
    note("tick", f"{words} 0")
    may_die("tick", "middle")
    note("tick", f"{words} 1")
    may_die("tick", "last")


app.stream_outbox(batch=25)
app.keep(every="100ms")
