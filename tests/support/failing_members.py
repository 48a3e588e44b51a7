"""Workers that are killed between the failure of a handler and its burial: see zygote.py.

An order names the store, the stream, and the place: before the failure is reported, or after that
and before the message is buried.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import headwater
from headwater import Message, Worker
from headwater.log import dead_letters
from headwater.log.group import Group
from tests.support.zygote import serve


def die(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(message: Message) -> None:
    if message.tag == "bad":
        raise LookupError("never")


def run(order: dict[str, Any]) -> None:
    report: Any = Group.fail

    def fail(group: Group, *failures: Any) -> Any:
        if order["place"] == "before the report" and failures[0].delay_ms is None:
            die()
        return report(group, *failures)

    places: dict[str, tuple[Any, str, Any]] = {
        "before the report": (Group, "fail", fail),
        "before the burial": (dead_letters, "bury", die),
    }
    setattr(*places[order["place"]])
    with headwater.connect(order["store"]) as hw:
        group = hw.stream(order["stream"]).group("g", dead_letters=True)
        Worker(group, refuse, max_attempts=2, backoff_ms=1, retry_ms=300).run()


if __name__ == "__main__":
    serve(run)
