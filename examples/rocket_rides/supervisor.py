"""Keeps the processes running: restarts each when it ends, and counts why it ended.

Processes are forked from a server that has imported everything already, so that a new one is at
work within milliseconds of the death of the old one.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable
from ctypes import c_bool
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Self

from examples.rocket_rides.faults import Fault, Tally
from examples.rocket_rides.processes import NAMES, Place, begin

_PATIENCE_S = 10.0
# The HTTP server finishes its work when it is asked to stop, and then ends by the signal.
_STOPPED = (0, -signal.SIGTERM)


class Life:
    """One process from its start to its end."""

    def __init__(self, process: multiprocessing.process.BaseProcess, news: Connection) -> None:
        self.process = process
        self.news = news
        self.doomed = False  # by us, or by its own word

    def tells(self) -> list[Fault]:
        """Return what the process has reported since the last time."""
        told = []
        with contextlib.suppress(EOFError, OSError):
            while self.news.poll():
                told.append(self.news.recv())
        return told


class Supervisor:
    """The processes of the application, each alive again whenever it has died.

    ``strays`` are processes that ended although nobody had asked for it.
    """

    def __init__(self, place: Place, seed: int, tally: Tally, tell: Callable[[str], None]) -> None:
        self._place = place
        self._seed = seed
        self._tally = tally
        self._tell = tell
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([begin.__module__])
        self._on = self._context.RawValue(c_bool, False)
        self._door = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._lives: dict[str, Life] = {}
        self._started: Counter[str] = Counter()
        self._changing = threading.Lock()
        self._ending = False
        self._watcher = threading.Thread(target=self._watch)
        self.strays: list[str] = []

    @property
    def port(self) -> int:
        """Where the API is."""
        return int(self._door.getsockname()[1])

    def __enter__(self) -> Self:
        for name in NAMES:
            self._start(name)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def inject(self, on: bool) -> None:
        """Turn the faults of the processes on or off."""
        self._on.value = on

    def kill(self, name: str) -> None:
        """End a process as a crash would: kill -9. It is started again at once."""
        with self._changing:
            if life := self._lives.get(name):
                life.doomed = True
                self._tally.add(Fault.KILL, name)
                life.process.kill()

    def close(self) -> None:
        """Ask all to stop, and kill those that do not. May be called again."""
        with self._changing:
            self._ending = True
        self._watcher.join()
        with self._changing:
            lives, self._lives = self._lives, {}
        for life in lives.values():
            life.process.terminate()
        for name, life in lives.items():
            life.process.join(_PATIENCE_S)
            if life.process.is_alive():
                self.strays.append(f"{name} did not stop when it was asked to")
                life.process.kill()
                life.process.join()
            elif life.process.exitcode not in _STOPPED:
                self.strays.append(f"{name} ended with exit code {life.process.exitcode}")
            life.news.close()
        self._door.close()

    def _start(self, name: str) -> None:
        self._started[name] += 1
        news, telling = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=begin,
            name=name,
            args=(
                name,
                self._place,
                self._on,
                f"{self._seed}/{name}/{self._started[name]}",
                telling,
                self._door,
            ),
        )
        process.start()
        telling.close()
        self._lives[name] = Life(process, news)

    def _watch(self) -> None:
        """Read what processes report, and restart those that ended."""
        while not self._ending:
            lives = dict(self._lives)
            wanted = [
                thing for life in lives.values() for thing in (life.news, life.process.sentinel)
            ]
            ready = set(connection.wait(wanted, timeout=0.1))
            for name, life in lives.items():
                if life.news in ready:
                    self._hear(name, life)
                if life.process.sentinel in ready:
                    with self._changing:
                        self._bury(name, life)

    def _hear(self, name: str, life: Life) -> None:
        for fault in life.tells():
            self._tally.add(fault, name)
            life.doomed |= fault == Fault.CRASH

    def _bury(self, name: str, life: Life) -> None:
        life.process.join()
        self._hear(name, life)
        life.news.close()
        if not life.doomed or life.process.exitcode != -signal.SIGKILL:
            self.strays.append(f"{name} ended with exit code {life.process.exitcode}")
            self._tell(f"{name} ended although nobody had asked for it")
        if not self._ending:
            self._start(name)
