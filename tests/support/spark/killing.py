"""Commands of Spark that are killed at work, with the JVM that they have started."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

from tests.support import commands
from tests.support.servers import until


def kill_at_work(url: str | None, *words: str, when: Callable[[], object]) -> None:
    """Run a command, and kill its driver and the JVM as soon as it has come so far."""
    program = commands.start(url, *words, "--master", "local[1]", start_new_session=True)
    try:
        until(lambda: program.poll() is not None or when(), seconds=200)
        assert program.poll() is None, program.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.communicate()
