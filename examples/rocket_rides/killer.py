"""Kills at random moments: every process, and the store's server, in turns of random order."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from examples.rocket_rides.faults import Fault, Tally
from examples.rocket_rides.processes import NAMES
from examples.rocket_rides.supervisor import Supervisor
from headwater.store import embedded

STORE = "store"
# About this long for a turn, in which everybody is killed once.
_TURN_S = 5.0
_PATIENCE_S = 20.0


class Killer:
    """Kills processes of a supervisor, and the server of an embedded store, during ``seconds``.

    ``store`` is the store's directory; None when its server is not ours to kill.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        store: Path | None,
        seconds: float,
        seed: int,
        tally: Tally,
        tell: Callable[[str], None],
    ) -> None:
        self._supervisor = supervisor
        self._store = store
        self._dice = random.Random(f"{seed}/kills")
        self._seconds = seconds
        self._tally = tally
        self._tell = tell
        self._thread = threading.Thread(target=self._work, name="killer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait until the last of them is killed."""
        self._thread.join()

    def _plan(self) -> list[tuple[float, Callable[[], None]]]:
        """Return what happens at which moment, in seconds from the start."""
        acts: list[Callable[[], None]] = []
        for _ in range(max(1, round(self._seconds / _TURN_S))):
            turn: list[Callable[[], None]] = [self._kill(name) for name in NAMES]
            if self._store is not None:
                turn += [self._kill_store, self._restart_store]
            self._dice.shuffle(turn)
            acts += turn
        early, late = 0.1 * self._seconds, 0.85 * self._seconds
        moments = sorted(self._dice.uniform(early, late) for _ in acts)
        return list(zip(moments, acts, strict=True))

    def _work(self) -> None:
        began = time.monotonic()
        for moment, act in self._plan():
            time.sleep(max(0.0, began + moment - time.monotonic()))
            act()

    def _kill(self, name: str) -> Callable[[], None]:
        def act() -> None:
            self._supervisor.kill(name)
            self._tell(f"kill -9 {name}")

        return act

    def _kill_store(self) -> None:
        assert self._store is not None
        # It may be dead already, and be started by the next process that needs it.
        deadline = time.monotonic() + _PATIENCE_S
        while (pid := embedded.status(self._store).pid) is None:
            if time.monotonic() > deadline:
                self._tell("there was no server to kill")
                return
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._tally.add(Fault.KILL, STORE)
        self._tell("kill -9 the store's server")

    def _restart_store(self) -> None:
        assert self._store is not None
        # Whoever needs it next starts it.
        embedded.stop(self._store, now=True)
        self._tally.add(Fault.RESTART, STORE)
        self._tell("stop the store's server")
