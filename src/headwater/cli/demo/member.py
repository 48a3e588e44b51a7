"""One member of the demo's group, as a process of its own that can be killed.

`python -m headwater.cli.demo.member STREAM GROUP MEMBER BATCH RETRY_MS [STALLS_AT]`, with the store
in $HEADWATER_URL. It prints "ready", waits for a line, then takes batches until it is killed or its
parent is gone. It prints a note of each as a line of JSON: what it took, and, once acknowledged,
what is done. In batch number STALLS_AT it works forever.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import headwater

WORK_S = 0.01


def main(
    stream: str, group: str, member: str, batch: str, ack_ms: str, stalls_at: str = "0"
) -> None:
    """Take, work, acknowledge, until killed."""
    with headwater.connect() as hw:
        own = hw.stream(stream).group(group, member=member)
        _note(ready=True)
        sys.stdin.readline()
        threading.Thread(target=_leave_with_parent, daemon=True).start()
        number = 0
        while True:
            taken = own.read(int(batch), block_ms=60_000, ack_ms=int(ack_ms))
            if not taken:
                continue
            number += 1
            _note(took=[(message.offset, message.attempt) for message in taken])
            if number == int(stalls_at):
                threading.Event().wait()
            time.sleep(WORK_S)
            own.ack(*(message.offset for message in taken))
            _note(done=[message.offset for message in taken])


def _leave_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


def _note(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
