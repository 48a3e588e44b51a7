"""How our sources behave as guests in Spark's Python processes, which live for many tasks.

They end in silence: over a unix socket a process learns that nobody hears its farewell any more,
which is no fault. Spark would print where in its code that happened, for each process of a session
that ends.

They do not search for garbage in what they imported: Spark has them collect it after every task and
every step of planning, and goes through all objects of all modules for it, some 25 ms each time.
"""

from __future__ import annotations

import gc
import sys
import traceback
from typing import Any

_print_exc = traceback.print_exc
# What outlives a full collection is set aside after the first so many: some come while modules are
# imported, the others after the first tasks. What lies in a ring and dies later is not found any
# more, so there is an end to it.
_FREEZES = 10


def is_spark_process() -> bool:
    """Say whether Spark started this process, or the one that it was forked from."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"


def be_a_good_guest() -> None:
    """Leave this process in silence, and spare it the search in what stays for good."""
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
