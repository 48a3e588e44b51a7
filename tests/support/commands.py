"""The command line as its users call it: in this process for most tests, as a program for some."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_origin

import typer.testing
from typer.testing import CliRunner

from headwater import Stream
from headwater.cli.main import app
from headwater.doors.catalogue import catalogue
from headwater.doors.replies import reply_type
from headwater.views import all_views

PROGRAM = Path(sys.executable).with_name("headwater")


class Answer(NamedTuple):
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[Any]:
        """What it printed, as JSON documents, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def row(self) -> Any:
        """The one JSON document that it printed."""
        (row,) = self.rows
        return row


# Building all commands takes longer than most of them need to run: it is done once.
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]


def run(url: str | None, *words: str, stdin: bytes | str | None = None) -> Answer:
    """Run a command in this process; raises what it does not print as one line.

    What it prints with --json must be views, and nothing else.
    """
    result = CliRunner().invoke(app, words, input=stdin, env={"HEADWATER_URL": url})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if "--json" in words:
        for line in result.stdout_bytes.splitlines()[:20]:
            assert is_view(line), f"no view prints {line!r}"
    return Answer(result.exit_code, result.stdout, result.stderr)


class StreamCommands:
    """Runs ``headwater stream COMMAND NAME ...`` on one stream."""

    def __init__(self, url: str, stream: Stream) -> None:
        self.url = url
        self.stream = stream

    def __call__(self, command: str, *words: str, stdin: bytes | str | None = None) -> Answer:
        """Run a command."""
        return run(self.url, "stream", command, self.stream.name, *words, stdin=stdin)


def is_view(line: bytes) -> bool:
    """Return whether a line is just what a view prints."""
    derived = [
        reply_type(operation)
        for operation in catalogue(asyncio=False)
        if operation.row.result or get_origin(operation.returns) is not list
    ]
    for view in (*all_views().values(), *derived):
        # An operation that every door writes by hand may return what no JSON says.
        with suppress(ValueError, TypeError):
            if view.from_json(line).to_json() == line:
                return True
    return False


@contextmanager
def running(
    url: str | None, *words: str, ignoring: bool = False, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """Run a command as a program of its own for the length of a block; it is killed at the end.

    ``ignoring`` starts it with SIGINT ignored, as shells start programs in the background; else it
    heeds SIGINT, however this process was started.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignoring else signal.SIG_DFL)
    try:
        process = start(url, *words, **options)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    """Return the next line that a program prints."""
    assert process.stdout is not None
    return process.stdout.readline()


def start(url: str | None, *words: str, **options: Any) -> subprocess.Popen[str]:
    """Start a command as a program of its own."""
    environment = {name: text for name, text in os.environ.items() if name != "HEADWATER_URL"}
    own = options.pop("env", {}) | ({"HEADWATER_URL": url} if url else {})
    return subprocess.Popen(
        [PROGRAM, *words],
        env=environment | own,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
