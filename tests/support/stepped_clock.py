"""A server whose wall clock a test steps back and forth, as an operator or NTP may do.

The server program gets another clock in front of the system's, made by the C compiler of the
machine; where there is none, tests that need it are skipped.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import Server

_SOURCE = Path(__file__).with_suffix(".c")


class SteppedServer(Server):
    """A server with a clock of its own, which ``step`` moves and ``stand`` sets."""

    def __init__(self, **words: Any) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler, which makes a clock that can be stepped")
        self._place = Path(tempfile.mkdtemp(prefix="hw-clock-"))
        self._set(0)
        made = self._place / "clock.so"
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O2", "-o", made, _SOURCE, "-ldl"], check=True
        )
        environment = {"LD_PRELOAD": str(made), "STEPPED_CLOCK": str(self._place / "step")}
        super().__init__(environment=environment, **words)

    def step(self, seconds: int) -> None:
        """Set the clock so many seconds ahead of the real time, or behind it."""
        self._set(seconds)

    def stand(self, ms: int) -> None:
        """Set the clock to a time, at which it stands still."""
        self._set(0, ms * 1000)

    def close(self) -> None:
        """End the server and remove its files."""
        super().close()
        shutil.rmtree(self._place, ignore_errors=True)

    def _set(self, seconds: int, still_us: int = 0) -> None:
        step = self._place / "step"
        # In place: the server has the file mapped.
        with step.open("r+b" if step.exists() else "wb") as file:
            file.write(b"".join(n.to_bytes(8, "little", signed=True) for n in (seconds, still_us)))
