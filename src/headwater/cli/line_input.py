"""Lines of standard input as messages: written in batches, as they arrive, with a progress bar."""

from __future__ import annotations

import io
import os
import select
import stat
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

import typer

from headwater import views
from headwater.cli import output
from headwater.errors import HeadwaterError, InvalidInput
from headwater.log.limits import MAX_TAG_BYTES, MAX_VALUE_BYTES

if TYPE_CHECKING:
    from headwater.log.stream import Stream

_CHUNK_BYTES = 1 << 20
_BATCH_BYTES = 8 << 20


class Split(NamedTuple):
    """How a line becomes a message: all have one tag, or a separator ends the line's own."""

    tag: str
    separator: str | None

    def entry(self, line: bytes, number: int) -> tuple[str, bytes]:
        """Return tag and value of a line; raises InvalidInput with its number."""
        if self.separator is None:
            return self.tag, line
        tag, found, value = line.partition(os.fsencode(self.separator))
        if not found:
            raise InvalidInput(
                f"line {number} has no separator {self.separator!r}; add it to the line, "
                "or leave --separator out"
            )
        try:
            return tag.decode(), value
        except UnicodeDecodeError:
            raise InvalidInput(f"the tag in line {number} is not UTF-8; encode it so") from None


def write_lines(
    stream: Stream, split: Split, most: int, backlog: int | None, as_json: bool
) -> None:
    """Write a message per line and print how many; also when an error or Ctrl-C ends it."""
    source = sys.stdin.buffer
    written = first = last = 0
    try:
        with _progress(source) as progress:
            for batch in batches(source, most):
                entries = [
                    split.entry(line, number) for number, line in enumerate(batch, written + 1)
                ]
                offsets = stream.write_many(entries, backlog=backlog)
                first, last = first or offsets.start, offsets.stop - 1
                written += len(batch)
                progress.step(len(batch), sum(map(len, batch)) + len(batch))
    except (HeadwaterError, KeyboardInterrupt):
        if written:
            output.warn(f"written before that: {written} messages, from {first} to {last}")
        raise
    output.answer(
        views.streams.LinesWrittenView(
            stream=stream.name, written=written, first=first or None, last=last or None
        ),
        f"written {written} messages, the first at {first}, the last at {last}"
        if written
        else "written 0 messages: there were no lines",
        as_json,
    )


def batches(source: BinaryIO, most: int) -> Iterator[list[bytes]]:
    """Yield lines without their ends, up to ``most`` at once, and as soon as they arrive.

    A line is held back only while more of the input is there already.
    """
    lines: deque[bytes] = deque()
    rest, ended = b"", False
    while not ended:
        chunk = source.read1(_CHUNK_BYTES)  # type: ignore[attr-defined]
        ended = not chunk
        *whole, rest = (rest + chunk).split(b"\n")
        lines.extend(whole)
        if len(rest) > MAX_VALUE_BYTES + MAX_TAG_BYTES:
            raise InvalidInput(
                f"a line has more than the {MAX_VALUE_BYTES} bytes that a value may have; "
                "divide it into several"
            )
        if ended and rest:
            lines.append(rest)
        while len(lines) >= most or (lines and (ended or not _has_more(source))):
            yield _take(lines, most)


def _take(lines: deque[bytes], most: int) -> list[bytes]:
    batch = [lines.popleft()]
    size = len(batch[0])
    while lines and len(batch) < most and size + len(lines[0]) <= _BATCH_BYTES:
        size += len(lines[0])
        batch.append(lines.popleft())
    return batch


def _has_more(source: BinaryIO) -> bool:
    """Return whether a read would not wait; the end of the input does not wait either."""
    try:
        ready, _, _ = select.select([source], [], [], 0)
    except (io.UnsupportedOperation, ValueError):
        return True
    return bool(ready)


class _Progress(Protocol):
    def step(self, lines: int, size: int) -> None:
        """Show progress."""


class _Silent:
    def step(self, lines: int, size: int) -> None:
        """Show nothing."""


@contextmanager
def _progress(source: BinaryIO) -> Iterator[_Progress]:
    """Show a bar on standard error when that is a terminal."""
    console = output.console(stderr=True)
    if not console.is_terminal:
        yield _Silent()
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    if sys.stdin.isatty():
        typer.echo("a message per line; Ctrl-D ends", err=True)
    columns = (BarColumn(), TextColumn("{task.fields[lines]} messages"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("lines", total=_size(source), lines=0)

        class Shown:
            lines = 0

            def step(self, lines: int, size: int) -> None:
                self.lines += lines
                bar.update(task, advance=size, lines=self.lines)

        yield Shown()


def _size(source: BinaryIO) -> int | None:
    """Return the size of a file; a pipe has none."""
    try:
        found = os.fstat(source.fileno())
    except io.UnsupportedOperation:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
