"""``headwater top`` shows a store once where it is piped, and answers to keys in a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

import headwater


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = f"embedded:{tmp_path_factory.mktemp('store')}"
    with headwater.connect(url) as hw:
        stream = hw.stream("rides")
        stream.write_many([("t", b"v")] * 100)
        held = stream.group("mail").read(40, ack_ms=60_000)
        stream.group("mail").ack(held[:10])
        hw.queue("jobs").push_many([b"1", b"2"])
        yield url


def program(*words: str) -> list[str]:
    return [sys.executable, "-m", "headwater", "top", *words]


def test_it_is_printed_once_where_it_is_piped(store: str) -> None:
    done = subprocess.run(
        program("--store", store), capture_output=True, text=True, check=True, timeout=60
    )
    assert "1 stream · 1 group · 1 queue" in done.stdout
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.strip()}
    assert rows["mail"][1:4] == ["rides", "group", "60"]
    assert rows["jobs"][1:3] == ["queue", "2"]
    assert "\x1b" not in done.stdout


class Terminal:
    """A terminal in which the program runs."""

    def __init__(self, *words: str) -> None:
        self._own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}
        self._process = subprocess.Popen(
            program(*words), stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )

    def wait_for(self, words: str, seconds: float = 60) -> None:
        """Wait until something is shown that was not before."""
        seen = b""
        while words not in seen.decode("utf-8", "ignore"):
            ready, _, _ = select.select([self._own], [], [], seconds)
            assert ready, f"{words!r} was not shown: {seen[-2000:]!r}"
            seen += os.read(self._own, 65536)

    def press(self, keys: bytes) -> None:
        os.write(self._own, keys)

    def end(self) -> int:
        """Wait for the end, reading what is still shown; returns the exit code."""
        while self._process.poll() is None:
            if select.select([self._own], [], [], 0.05)[0]:
                os.read(self._own, 65536)
        assert termios.tcgetattr(self._theirs) == self.before, "the terminal is as it was"
        os.close(self._own)
        os.close(self._theirs)
        return self._process.returncode


def test_keys_choose_a_row_enter_it_and_leave(store: str) -> None:
    terminal = Terminal("--store", store)
    terminal.wait_for("j k move")
    terminal.press(b"\r")
    terminal.wait_for("esc back")
    terminal.press(b"\x1b")
    terminal.wait_for("j k move")
    terminal.press(b"j")
    terminal.press(b"\r")
    terminal.wait_for("esc back")
    terminal.press(b"q")
    assert terminal.end() == 0
