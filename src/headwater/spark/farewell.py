"""How Spark's Python processes end: in silence.

Over a unix socket a process learns that nobody hears its farewell any more, which is no fault.
Spark would print where in its code that happened, for each process of a session that ends.
"""

from __future__ import annotations

import sys
import traceback

_print_exc = traceback.print_exc


def leave_in_silence() -> None:
    """Print no line that the JVM has closed in this process; its faults are printed as ever."""
    traceback.print_exc = _print_faults  # type: ignore[assignment]


def is_spark_process() -> bool:
    """Say whether Spark started this process, or the one that it was forked from."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"


def _print_faults() -> None:
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        _print_exc()
