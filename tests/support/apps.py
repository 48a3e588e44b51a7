"""Runs the application of noting_app as a program, and reads the notes of its handlers."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import headwater
from tests.support.commands import PROGRAM
from tests.support.pages import ROOT
from tests.support.servers import until

PARTS = ("stream_sync", "stream_async", "topic", "queue_sync", "queue_async")
TARGET = "tests.support.noting_app:app"


class Note(NamedTuple):
    """What a handler noted: it began or ended a message, in a process."""

    what: str
    part: str
    value: str
    attempt: int
    process: int


class NotingApp:
    """The application on one store, under a name that nobody else uses."""

    def __init__(self, url: str, name: str, folder: Path, ack: str = "10m") -> None:
        self.url = url
        self.name = name
        self.folder = folder
        self.environment = {"NOTES_NAME": name, "NOTES": str(folder), "NOTES_ACK": ack}
        self.hw = headwater.connect(url)
        self._notes: list[Note] = []
        self._read = 0

    def write(self, values: list[bytes]) -> None:
        """Give every part the same messages."""
        hw, name = self.hw, self.name
        hw.stream(name).write_many([(f"t{n}", value) for n, value in enumerate(values)])
        hw.topic(f"{name}-t", 2).write_many([(f"t{n}", value) for n, value in enumerate(values)])
        hw.queue(name).push_many(values)
        hw.queue(f"{name}-a").push_many(values)

    def notes(self) -> list[Note]:
        """Return all notes so far."""
        file = self.folder / "notes"
        size = file.stat().st_size if file.exists() else 0
        if size != self._read:
            words = (line.split(" ") for line in file.read_text("utf-8").splitlines())
            self._notes = [
                Note(a, part, value, int(n), int(pid)) for a, part, value, n, pid in words
            ]
            self._read = size
        return self._notes

    def done(self, values: list[bytes]) -> bool:
        """Return whether every part has ended every message at least once."""
        ended = {(note.part, note.value) for note in self.notes() if note.what == "end"}
        return ended == {(part, value.decode()) for part in PARTS for value in values}

    def shut(self) -> None:
        """Let handlers that begin not end."""
        (self.folder / "gate").touch()

    def open(self) -> None:
        """Let handlers end."""
        (self.folder / "gate").unlink()

    def waiting(self) -> dict[str, int]:
        """Return how many messages each part could be given at once; nothing may be in hand."""
        hw, name = self.hw, self.name
        stream, topic = hw.stream(name), hw.topic(f"{name}-t")
        return {
            "stream_sync": len(stream.group("sync").read(1000, ack_ms=60_000)),
            "stream_async": len(stream.group("async").read(1000, ack_ms=60_000)),
            "topic": len(topic.group("g").read(1000, ack_ms=60_000)),
            "queue_sync": hw.queue(name).stats().ready,
            "queue_async": hw.queue(f"{name}-a").stats().ready,
        }

    @contextmanager
    def running(self, *words: str, **environment: str) -> Iterator[RunningProgram]:
        """Run it as a program for the length of a block; what is left is killed."""
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [PROGRAM, "run", TARGET, "--no-view", *words],
                env=os.environ | self.environment | {"HEADWATER_URL": self.url} | environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        program = RunningProgram(process, self)
        try:
            yield program
        finally:
            process.kill()
            process.wait()
            self.hw.close()


class RunningProgram:
    """``headwater run`` while it runs."""

    def __init__(self, process: subprocess.Popen[bytes], app: NotingApp) -> None:
        self._process = process
        self._app = app

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self) -> str:
        """Return what it has printed, and those before it."""
        return (self._app.folder / "log").read_text("utf-8")

    def begun(self, count: int, processes: int = 1) -> set[int]:
        """Wait until handlers of every part have begun so many; returns their processes."""

        def found() -> set[int] | None:
            notes = [note for note in self._app.notes() if note.what == "begin"]
            where = {note.process for note in notes}
            counts = [sum(note.part == part for note in notes) for part in PARTS]
            return where if min(counts) >= count and len(where) >= processes else None

        return set(until(found))

    def send(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send it a signal, and wait for its end; returns its exit code."""
        self.send(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end; returns its exit code."""
        return self._process.wait(60)
