"""The processes of the application: API, streamer, consumers. Each may be killed at any moment.

Each is given names and URLs, keeps nothing that it could lose, and ends with its parent, however
that ends. What the faults need of them is written here, not in what they run.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
import uvicorn

import headwater
from examples.rocket_rides import faults
from examples.rocket_rides.api import create_app
from examples.rocket_rides.faults import Fault, Faults, Switch
from examples.rocket_rides.model import add_up, open_database, set_totals
from headwater import Message
from headwater.errors import OutcomeUnknown
from headwater.kernel.stopping import stop_on_signals
from headwater.outbox import Consumer, Outbox, Streamer

CONSUMERS = ("consumer0", "consumer1")
NAMES = ("api", "streamer", *CONSUMERS)


class Place(NamedTuple):
    """Where everything is: the database, the store, the stream in it, what processes say."""

    database: str
    store: str
    stream: str
    logs: Path


def begin(
    name: str, place: Place, on: Switch, seed: str, news: Connection, door: socket.socket
) -> None:
    """Run the process of that name until it is stopped; its output goes to a file."""
    # A process group of its own: Ctrl-C is for the parent, which then ends its children.
    os.setpgrp()
    with (place.logs / f"{name}.log").open("a") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    logging.basicConfig(format="%(asctime)s %(message)s")
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    own = Faults(on, seed, news)
    if name == "api":
        serve(place, own, door)
        return
    door.close()
    if name == "streamer":
        stream(place, own)
    else:
        consume(name, place, own)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(0)


def serve(place: Place, own: Faults, door: socket.socket) -> None:
    """Answer requests on the socket, which stays open while no process serves it."""

    def dawdle() -> None:
        if own.strike(Fault.SLOW, faults.SLOW_SHARE):
            time.sleep(own.seconds(faults.SLOWEST_S))

    engine = open_database(place.database)
    if engine.dialect.name == "sqlite":
        # It has one writer at a time: nobody overtakes a transaction that has written.
        app = create_app(engine, place.stream, before_write=dawdle)
    else:
        app = create_app(engine, place.stream, before_commit=dawdle)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off")).run(sockets=[door])


def stream(place: Place, own: Faults) -> None:
    """Move what is staged to the log; some batches twice."""

    def lose_answer(step: str) -> None:
        # The batch is in the log, and the streamer believes that it may not be: it sends it again.
        if step.startswith("appended") and own.strike(Fault.DOUBLE_SEND, faults.DOUBLE_SEND_SHARE):
            raise OutcomeUnknown("hw_stream_write", "a fault on purpose")

    with headwater.connect(place.store) as hw:
        streamer = Streamer(Outbox(open_database(place.database)), hw, steps=lose_answer)
        with stop_on_signals(streamer.stop):
            streamer.run()


def consume(name: str, place: Place, own: Faults) -> None:
    """Add up distances."""

    def before_commit() -> None:
        # All is written, nothing is committed.
        own.crash(Fault.CRASH, faults.CRASH_SHARE)

    with consumer_of(name, place, before_commit) as consumer, stop_on_signals(consumer.stop):
        consumer.run()


@contextmanager
def consumer_of(
    name: str, place: Place, before_commit: Callable[[], None] = lambda: None
) -> Iterator[Consumer]:
    """Return the consumer of a name, which adds up, and applies reset records."""

    def handle(conn: sa.Connection, messages: list[Message]) -> None:
        add_up(conn, name, messages)
        before_commit()

    def reset(conn: sa.Connection, state: dict[str, Any]) -> None:
        set_totals(conn, name, state)

    engine = open_database(place.database)
    with headwater.connect(place.store) as hw:
        yield Consumer(name, place.stream, engine, hw, handle, on_reset=reset)
    engine.dispose()
