"""How our sources behave in Spark's Python processes, which live for many tasks.

They end silently: over a unix socket, a process that ends learns that its peer is gone already,
which is no fault. Spark would print the stack of that error for each process of a session that
ends.

They do not search for garbage in what they imported: Spark has them collect garbage after every
task and every step of planning, which goes through all objects of all modules and takes 25 ms.
"""

from __future__ import annotations

import gc
import signal
import sys
import traceback
from typing import Any

# The module of PySpark that the process of a streaming source runs, and the parent that such a
# process is forked from where our Java is in force.
RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
SOURCE_DAEMON = "headwater.spark.log.source_daemon"

_print_exc = traceback.print_exc
# Objects that survive one of the first so many full collections are frozen: some are made while
# modules are imported, the others by the first tasks. A cycle that is frozen and dies later is
# never freed, so there is an end to it.
_FREEZES = 10
_END_S = 30
_ENDS = (signal.SIGTERM, signal.SIGHUP)


def is_spark_process() -> bool:
    """Return whether Spark started this process, or the one that it was forked from."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"


def stop_on_signal() -> None:
    """Let the process of a streaming source stop its reader when Spark ends it, by a signal.

    Spark sends SIGTERM at the end of a query. The parent of forked processes sends SIGHUP to them
    when the application ends.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name in (RUNNER, SOURCE_DAEMON):
        for ends in _ENDS:
            signal.signal(ends, _end_of_stream)


def end_undisturbed() -> None:
    """Let a reader that stops finish: Spark closes its socket and sends SIGTERM behind that.

    It has ``_END_S`` for it: Spark does not end it otherwise, and a store may not answer.
    """
    if signal.getsignal(signal.SIGTERM) is _end_of_stream:
        for ends in _ENDS:
            signal.signal(ends, signal.SIG_IGN)
        signal.alarm(_END_S)


def _end_of_stream(*_: object) -> None:
    # As if Spark had closed the socket.
    end_undisturbed()
    raise EOFError


def quiet_and_freeze() -> None:
    """Let this process end silently, and freeze the objects that stay in it for good."""
    traceback.print_exc = _print_faults  # type: ignore[assignment]
    left = iter(range(_FREEZES - 1))

    def freeze(phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 2:
            gc.freeze()
            if next(left, None) is None:
                gc.callbacks.remove(freeze)

    gc.callbacks.append(freeze)


def _print_faults() -> None:
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        _print_exc()
