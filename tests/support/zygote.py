"""Streamers as processes of their own, quickly: one process that has imported all, and forks.

Run as a program it takes one order a line, in JSON: {"start": {...}} forks a streamer and prints
its pid, {"wait": pid} prints how it ended. A streamer runs until SIGTERM, or until it has done a
step so often that it is to die there, by kill -9. Other programs serve other kinds of processes.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Zygote:
    """What tests hold of the process that forks; all that it forked ends with it."""

    def __init__(self, program: str = "tests.support.zygote") -> None:
        self._program = subprocess.Popen(
            [sys.executable, "-m", program],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def start(self, db: str = "", store: str = "", **order: Any) -> int:
        """Start a process; ``step`` and ``times`` say where it dies. Returns its pid."""
        return self._order({"start": {"db": db, "store": store, **order}})

    def wait(self, pid: int) -> int:
        """Wait for the end of a process; returns its exit code, -9 for kill -9."""
        return self._order({"wait": pid})

    def end(self, pid: int, number: int = signal.SIGTERM) -> int:
        """Send a process a signal, and wait for its end."""
        os.kill(pid, number)
        return self.wait(pid)

    def _order(self, order: dict[str, Any]) -> int:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(json.dumps(order) + "\n")
        self._program.stdin.flush()
        return int(self._program.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.killpg(self._program.pid, signal.SIGKILL)
        self._program.communicate()


def dying(order: dict[str, Any]) -> Callable[[str], None]:
    """Return a function of steps that ends the process at the step that was ordered."""
    left = order.get("times", 1)

    def die(step: str) -> None:
        nonlocal left
        left -= step == order.get("step")
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    return die


def _stream(order: dict[str, Any]) -> None:
    import sqlalchemy as sa

    import headwater
    from headwater.kernel.failures import START_MS
    from headwater.outbox import Outbox, Streamer

    outbox = Outbox(sa.create_engine(order["db"]))
    with (
        headwater.connect(order["store"], wait_ms=START_MS) as hw,
        Streamer(
            outbox,
            hw,
            batch=order.get("batch", 1000),
            id_header=order.get("id_header", False),
            steps=dying(order),
        ) as streamer,
    ):
        signal.signal(signal.SIGTERM, lambda *_: streamer.stop())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        streamer.run()


def serve(run: Callable[[dict[str, Any]], None]) -> None:
    """Take orders until there are no more; what is imported by now need not be after a fork.

    SIGTERM is held back until ``run`` lets it in, so that none is lost that comes early.
    """
    # A streamer may be told to stop before it is ready to hear it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # What is imported stays, and no child has to look through it for garbage.
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        child = os.fork()
        if not child:
            code = 1
            try:
                run(order["start"])
                code = 0
            except Exception as error:  # noqa: BLE001  told to whoever waits
                print(f"{run.__name__}: {error!r}", file=sys.stderr, flush=True)
            os._exit(code)
        print(child, flush=True)
    # Whoever gave the orders is gone; nothing that was forked here outlives it.
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    import headwater.client
    import headwater.outbox  # noqa: F401

    serve(_stream)
