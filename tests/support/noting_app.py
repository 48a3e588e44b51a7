"""An application whose handlers note what they do, in a file to which each of them appends.

``headwater run tests.support.noting_app:app``; its settings come from the environment. While the
file ``gate`` is there, handlers that have begun do not end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

from headwater import App

NAME = os.environ.get("NOTES_NAME", "notes")
NOTES = Path(os.environ.get("NOTES", "."))
ACK = os.environ.get("NOTES_ACK", "10m")
OWN = int(os.environ["NOTES_PROCESSES"]) if "NOTES_PROCESSES" in os.environ else None

log = logging.getLogger("noting")
app = App()


def note(what: str, part: str, message: Any) -> None:
    """Append a line, whole, to the notes."""
    value = message.value.decode()
    line = f"{what} {part} {value} {message.attempt} {os.getpid()}\n".encode()
    file = os.open(NOTES / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line)
    os.close(file)


def is_shut() -> bool:
    """Return whether handlers wait."""
    return (NOTES / "gate").exists()


def work(part: str, message: Any) -> None:
    """Handle a message in a thread."""
    note("begin", part, message)
    if message.value == b"fail" and message.attempt == 1:
        log.warning("about to fail")
        raise LookupError("as it was asked to")
    while is_shut():
        time.sleep(0.05)
    note("end", part, message)


async def work_async(part: str, message: Any) -> None:
    """Handle a message in the event loop."""
    note("begin", part, message)
    while is_shut():  # noqa: ASYNC110  another process opens the gate
        await asyncio.sleep(0.05)
    note("end", part, message)


@app.worker(stream=NAME, group="sync", ack_ms=ACK, backoff="10ms")
def stream_sync(message: Any) -> None:
    work("stream_sync", message)


@app.worker(stream=NAME, group="async", ack_ms=ACK, backoff="10ms")
async def stream_async(message: Any) -> None:
    await work_async("stream_async", message)


@app.worker(topic=f"{NAME}-t", partitions=2, group="g", ack_ms=ACK, backoff="10ms")
def topic(message: Any) -> None:
    work("topic", message)


@app.worker(queue=NAME, ack_ms=ACK, backoff="10ms")
def queue_sync(message: Any) -> None:
    work("queue_sync", message)


@app.worker(queue=f"{NAME}-a", ack_ms=ACK, backoff="10ms", processes=OWN)
async def queue_async(message: Any) -> None:
    await work_async("queue_async", message)


app.keep(every="100ms")
