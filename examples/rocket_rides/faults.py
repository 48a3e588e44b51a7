"""What goes wrong on purpose: which faults there are, and how a process meets its share of them.

Two shares are those of the story that this example retells: one batch in ten is sent twice, one
batch in ten ends in a crash just before its commit. The rest is new: requests sent twice,
transactions that stay open, and kills at random moments (see `killer.py`).
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from enum import StrEnum
from multiprocessing.connection import Connection
from typing import Protocol


class Fault(StrEnum):
    """What can go wrong."""

    DOUBLE_SEND = "batch sent twice"
    CRASH = "crash before commit"
    KILL = "kill -9"
    RESTART = "restart"
    SLOW = "slow transaction"
    DOUBLE_POST = "request sent twice"
    LOST_ANSWER = "no answer, sent again"


DOUBLE_SEND_SHARE = 0.10
CRASH_SHARE = 0.10
SLOW_SHARE = 0.05
DOUBLE_POST_SHARE = 0.10

SLOWEST_S = 0.5


class Tally:
    """How often which fault has happened to which process; threads may share it."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[Fault, str]] = Counter()
        self._turn = threading.Lock()

    def add(self, fault: Fault, whom: str) -> None:
        with self._turn:
            self._counts[fault, whom] += 1

    def of(self, fault: Fault) -> dict[str, int]:
        """Return how often a fault has happened to each process."""
        with self._turn:
            return {whom: n for (kind, whom), n in sorted(self._counts.items()) if kind == fault}

    @property
    def total(self) -> int:
        with self._turn:
            return self._counts.total()


class Switch(Protocol):
    """A flag in memory that all processes share; set and read without a lock.

    A lock could be in the hands of the process that is killed next.
    """

    value: bool


class Faults:
    """The faults of one process. Each is reported to the parent before it happens."""

    def __init__(self, on: Switch, seed: str, news: Connection) -> None:
        self._on = on
        self._dice = random.Random(seed)
        self._news = news
        self._turn = threading.Lock()

    def strike(self, fault: Fault, share: float) -> bool:
        """Return whether a fault is to happen now, which it does in that share of cases."""
        with self._turn:
            struck = self._on.value and self._dice.random() < share
            if struck:
                self._news.send(fault)
        return struck

    def crash(self, fault: Fault, share: float) -> None:
        """End this process at once, in that share of cases."""
        if self.strike(fault, share):
            os.kill(os.getpid(), signal.SIGKILL)

    def seconds(self, longest: float) -> float:
        """Return a random length of time."""
        with self._turn:
            return self._dice.uniform(0, longest)
