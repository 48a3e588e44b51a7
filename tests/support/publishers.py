"""Publishers as processes of their own: see zygote.py.

An order names the store, the stream and how many epochs to publish. Each epoch is staged by three
tasks in the order of the epoch's numbers and published; a publisher that begins anew repeats the
epochs from the one that it is told. It runs to the end unless somebody kills it.
"""

from __future__ import annotations

import secrets
import signal
from typing import Any

import pyarrow as pa

import headwater
from headwater.kernel.failures import START_MS
from headwater.log import node
from tests.support.zygote import serve

TASKS = 3


def numbers(epoch: int, rows: int) -> range:
    """Return the numbers that an epoch brings into the stream."""
    return range(epoch * rows, (epoch + 1) * rows)


def publish(order: dict[str, Any]) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    setattr(node, "NODE_MESSAGES", 5)  # noqa: B010  many small nodes, for several steps
    rows = order["rows"]
    with headwater.connect(order["store"], wait_ms=START_MS) as hw:
        stream = hw.stream(order["stream"])
        for epoch in range(order["first"], order["last"] + 1):
            attempt = secrets.token_hex(4)
            names = []
            for task in range(TASKS):
                part = numbers(epoch, rows)[task * rows // TASKS : (task + 1) * rows // TASKS]
                batch = pa.table({"tag": ["p"] * len(part), "value": [b"%d" % n for n in part]})
                names.append(f"{epoch}/{task}/{attempt}")
                stream.stage(batch, names[-1])
            stream.publish(*names, producer="query", sequence=epoch)
            with open(order["page"], "w") as page:  # noqa: PTH123
                page.write(str(epoch))


if __name__ == "__main__":
    serve(publish)
