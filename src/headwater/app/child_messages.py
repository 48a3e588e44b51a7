"""What a supervisor and its processes tell each other, one JSON document a line over two pipes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Generic, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")

_PIECE = 65536


class Begin(msgspec.Struct, tag=True, frozen=True):
    """To a process: import the application, check it if asked to, and answer with Checked.

    ``memory`` is the most bytes that it may use; 0 is no limit.
    """

    target: str
    store: str | None
    db: str | None
    only: list[str]
    without: list[str]
    log: str
    number: int
    check: bool
    memory: int


class Assign(msgspec.Struct, tag=True, frozen=True):
    """To a process: run these parts, and report.

    When it is ``watched``, it looks whether the store answers, and at the lag of the ``lags``.
    ``counts`` is the file in which all processes count for metrics, of this many processes.
    """

    parts: list[str]
    number: int
    drain_ms: int
    watched: bool
    lags: list[str]
    counts: int | None = None
    processes: int = 0


class Stop(msgspec.Struct, tag=True, frozen=True):
    """To a process: finish what is begun, return the rest, and end."""


class Hurry(msgspec.Struct, tag=True, frozen=True):
    """To a process that stops: return what is not done now, and end."""


class PartPlan(msgspec.Struct, frozen=True):
    """What a supervisor knows of a part before it runs."""

    name: str
    kind: str
    object: str
    spread: bool
    processes: int | None


class FoundFault(msgspec.Struct, frozen=True):
    """One line of the list of what is wrong."""

    text: str
    fatal: bool


class Checked(msgspec.Struct, tag=True, frozen=True):
    """From a process: what the application has, what is wrong with it, and its files."""

    parts: list[PartPlan]
    faults: list[FoundFault]
    files: list[str]


class PartReport(msgspec.Struct, frozen=True):
    """What a process says of one part."""

    name: str
    status: str
    done: int
    failed: int
    restarts: int
    why: str | None = None
    lag: int | None = None
    stuck: int = 0


class Report(msgspec.Struct, tag=True, frozen=True):
    """From a process, every second and soon after a change: its parts, and its bytes of memory.

    ``trouble`` is why the store cannot be used, if the process looks for that.
    """

    parts: list[PartReport]
    memory: int
    trouble: str | None = None


Command: TypeAlias = Begin | Assign | Stop | Hurry
News: TypeAlias = Checked | Report


class Lines(Generic[T]):
    """Reads documents from a pipe; ``read`` never waits for a whole one."""

    def __init__(self, pipe: int, kind: object) -> None:
        self.pipe = pipe
        self.ended = False
        self._decode = msgspec.json.Decoder(kind).decode
        self._rest = b""

    def fileno(self) -> int:
        """Return the file descriptor, for a poll."""
        return self.pipe

    def read(self) -> Iterator[T]:
        """Yield the documents that are there, after waiting for some bytes; none at the end."""
        data = os.read(self.pipe, _PIECE)
        self.ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield self._decode(line)


def send(pipe: int, document: Command | News) -> None:
    """Write a document to a pipe; raises OSError when nobody reads it."""
    data = msgspec.json.encode(document) + b"\n"
    while data:
        data = data[os.write(pipe, data) :]
