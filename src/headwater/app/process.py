"""A process of an application, as its supervisor sees it: start, commands, reports, end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

from headwater.app.child_messages import Checked, Command, Lines, News, PartReport, Report, send

# What a process that was asked to end has left after its drain, until it is killed.
GRACE_S: Final = 8.0


class ChildProcess:
    """A running process; ``lines`` is called with what it prints, unless that is inherited."""

    def __init__(self, share: tuple[int, ...], lines: Callable[[str], None] | None) -> None:
        for_child, self._commands = os.pipe()
        news, from_child = os.pipe()
        os.set_blocking(self._commands, False)
        captured = None if lines is None else subprocess.PIPE
        try:
            # A session of its own: Ctrl-C in a terminal is for the supervisor alone.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headwater.app.child", str(for_child), str(from_child)],
                pass_fds=(for_child, from_child, *share),
                stdin=subprocess.DEVNULL,
                stdout=captured,
                stderr=subprocess.STDOUT if captured else None,
                start_new_session=True,
            )
        finally:
            os.close(for_child)
            os.close(from_child)
        self._news: Lines[News] = Lines(news, News)
        self._lines = lines
        self._printed = b""
        self.checked: Checked | None = None
        self.parts: dict[str, PartReport] = {}
        self.memory = 0
        self.trouble: str | None = None
        self.started = time.monotonic()
        self.kill_at: float | None = None

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether it runs all parts that it was given."""
        return bool(self.parts) and all(part.status == "running" for part in self.parts.values())

    @property
    def code(self) -> int | None:
        """How it ended: an exit code, or a signal as a negative number; None while it lives."""
        return self._process.poll()

    def pipes(self) -> Iterator[int]:
        """Yield the file descriptors by which it is heard."""
        if not self._news.ended:
            yield self._news.pipe
        if self._process.stdout is not None:
            yield self._process.stdout.fileno()

    def hear(self, pipe: int) -> None:
        """Take what it says by one of its pipes, which has something, or is at its end."""
        if pipe == self._news.pipe:
            for news in self._news.read():
                if isinstance(news, Report):
                    self.memory, self.trouble = news.memory, news.trouble
                    self.parts = {part.name: part for part in news.parts}
                else:
                    self.checked = news
        elif self._process.stdout is not None and self._lines is not None:
            data = os.read(pipe, 65536)
            *lines, self._printed = (self._printed + data).split(b"\n")
            if not data:
                self._process.stdout.close()
                self._process.stdout = None
                lines = [self._printed] if self._printed else []
            for line in lines:
                self._lines(line.decode("utf-8", "backslashreplace"))

    def tell(self, command: Command) -> None:
        """Send a command; a process that is gone, or does not listen, is noticed elsewhere."""
        with contextlib.suppress(OSError):
            send(self._commands, command)

    def kill_after(self, seconds: float) -> None:
        """Let it be killed if it still lives then; the first of several times counts."""
        at = time.monotonic() + seconds
        self.kill_at = at if self.kill_at is None else min(at, self.kill_at)

    def kill_if_due(self) -> bool:
        """Kill it when its time has come; returns whether it was."""
        if self.kill_at is None or time.monotonic() < self.kill_at or self.code is not None:
            return False
        self._process.kill()
        return True

    def close(self) -> None:
        """Take what it said last, and close its pipes; after its end."""
        for pipe in list(self.pipes()):
            # A grandchild may hold the pipe open: read what is there, and no more.
            os.set_blocking(pipe, False)
            with contextlib.suppress(BlockingIOError):
                while pipe in self.pipes():
                    self.hear(pipe)
        if self._process.stdout is not None:
            self._process.stdout.close()
        os.close(self._news.pipe)
        os.close(self._commands)
        self._process.wait()


def how_it_ended(code: int) -> str:
    """Return the words for an exit code, or for the signal that a negative one is."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"was killed by signal {-code} ({name})"
