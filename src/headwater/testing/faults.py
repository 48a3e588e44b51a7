"""Faults on demand: the next calls of an operation fail, lose their answer, or are slow.

A fault meets the calls that the clients of this process send to the store, by any handle, worker or
consumer, sync or async, if they connected after the store was made for the test.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Final

import redis

from headwater.errors import InvalidInput, OutcomeUnknown, StoreUnreachable
from headwater.kernel.inputs import Duration, check_int, check_ms
from headwater.store.faults import name_of
from headwater.store.interception import Interference
from headwater.store.library import VERSION, library

_WHY: Final = "a fault of the test"
_OURS: Final = f"hw{VERSION}_"
# One function does all of these: the first argument says which.
_SETTLE: Final = "queue.settle"
_SETTLED: Final = ("queue.ack", "queue.nack", "queue.release", "queue.extend")
# And these are the same call, with another time.
_ALSO: Final = {"group.nack": "group.postpone", "group.extend": "group.postpone"}


@cache
def operations() -> frozenset[str]:
    """Return the names of all operations that faults may meet."""
    functions = re.findall(rf"'{_OURS}(\w+)'", library().source)
    return frozenset({*map(name_of, functions), *_SETTLED, *_ALSO} - {_SETTLE})


def operation_of(command: tuple[Any, ...]) -> tuple[str, str]:
    """Return the operation of a command and the function that it calls; '' of any other."""
    if not str(command[0]).startswith("FCALL"):
        return "", ""
    function = f"hw_{command[1].removeprefix(_OURS)}"
    name = name_of(function)
    if name == _SETTLE:
        name = f"queue.{command[3 + int(command[2])]}"
    return name, function


@dataclass
class _Fault:
    operation: str
    left: int
    make: Callable[[str], Interference]


class StoreFaults:
    """What goes wrong with the next calls to a store; faults of one operation are met in order.

    An operation is named by data type and verb: "queue.ack", "group.read", "stream.write"; a star
    stands for any, as in "*.ack". ``times`` is how many calls it meets. A call that the client
    repeats by itself is met each time. Raises InvalidInput for a name that no operation has.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._lock = threading.Lock()
        self._faults: list[_Fault] = []

    def fail(self, operation: str, *, times: int = 1) -> None:
        """Let calls fail before they reach the store: the caller gets StoreUnreachable at once.

        It is what a caller sees after an outage that outlasts its patience. Nothing was done.
        """
        self._add(
            operation, times, lambda _: Interference(before=StoreUnreachable(self._where, _WHY))
        )

    def lose(self, operation: str, *, times: int = 1) -> None:
        """Let calls be carried out and their answers be lost: the caller gets OutcomeUnknown.

        It is what a caller sees when the connection breaks and the store stays down.
        """
        self._add(operation, times, lambda called: Interference(after=OutcomeUnknown(called, _WHY)))

    def disconnect(self, operation: str, *, times: int = 1) -> None:
        """Let calls be carried out, and break the connection before the answer.

        The client does what it always does: it sends again what is harmless to repeat, which is
        then carried out twice, and raises OutcomeUnknown for the rest.
        """
        self._add(operation, times, lambda _: Interference(after=redis.ConnectionError(_WHY)))

    def slow(self, operation: str, delay_ms: Duration, *, times: int = 1) -> None:
        """Let calls wait this long before they are sent, by the clock of this process."""
        delay_s = check_ms(delay_ms, "delay_ms") / 1000
        self._add(operation, times, lambda _: Interference(delay_s))

    @property
    def pending(self) -> list[str]:
        """The operations of faults that no call has met yet, once for each call."""
        with self._lock:
            return [fault.operation for fault in self._faults for _ in range(fault.left)]

    def clear(self) -> None:
        """Forget all faults that no call has met yet."""
        with self._lock:
            self._faults.clear()

    def meet(self, command: tuple[Any, ...]) -> Interference | None:
        """Return what happens to a command: what the first fault says that is for it."""
        if not self._faults:
            return None
        name, function = operation_of(command)
        with self._lock:
            for fault in self._faults:
                if name and fnmatchcase(name, _ALSO.get(fault.operation, fault.operation)):
                    fault.left -= 1
                    if not fault.left:
                        self._faults.remove(fault)
                    return fault.make(function)
        return None

    def _add(self, operation: str, times: int, make: Callable[[str], Interference]) -> None:
        check_int(times, "times", 1, 1_000_000)
        if not any(fnmatchcase(name, operation) for name in operations()):
            verb = operation.rpartition(".")[2]
            alike = sorted(name for name in operations() if name.endswith(f".{verb}"))
            raise InvalidInput(
                f"no operation is called {operation!r}; "
                + (f"did you mean {' or '.join(alike)}?" if alike else "see the reference")
            )
        with self._lock:
            self._faults.append(_Fault(operation, times, make))
