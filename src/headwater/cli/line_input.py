"""Lines of standard input as messages: written in batches, as they arrive, with a progress bar."""

from __future__ import annotations

import io
import os
import select
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.options import WriteFlags, headers_of
from headwater.errors import HeadwaterError, InvalidInput
from headwater.kernel.inputs import BASE64, from_text
from headwater.log.keys import MAX_TAG_BYTES, MAX_VALUE_BYTES

if TYPE_CHECKING:
    from headwater.log.stream import Stream
    from headwater.log.topic import Topic
    from headwater.views.record import View

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


class _InStream:
    """Where messages went in a stream."""

    def __init__(self, stream: Stream) -> None:
        self._name = stream.name
        self._first = self._last = 0

    def add(self, offsets: range) -> None:
        self._first, self._last = self._first or offsets.start, offsets.stop - 1

    def one(self) -> tuple[View, str]:
        """Return what is answered for one message."""
        view = views.streams.WrittenView(stream=self._name, offset=self._first)
        return view, str(self._first)

    def lines(self, written: int) -> tuple[View, str]:
        """Return what is answered for lines."""
        first, last = self._first or None, self._last or None
        view = views.streams.LinesWrittenView(
            stream=self._name, written=written, first=first, last=last
        )
        return view, f"the first at {self._first}, the last at {self._last}"

    def __str__(self) -> str:
        return f"from {self._first} to {self._last}"


class _InTopic:
    """Where messages went in a topic."""

    def __init__(self, topic: Topic) -> None:
        self._name = topic.name
        self._spans: dict[int, tuple[int, int]] = {}

    def add(self, offsets: dict[int, range]) -> None:
        for place, span in offsets.items():
            first, _ = self._spans.get(place, (span.start, 0))
            self._spans[place] = first, span.stop - 1

    def one(self) -> tuple[View, str]:
        """Return what is answered for one message."""
        ((place, (offset, _)),) = self._spans.items()
        view = views.streams.TopicWrittenView(topic=self._name, partition=place, offset=offset)
        return view, f"{place}:{offset}"

    def lines(self, written: int) -> tuple[View, str]:
        """Return what is answered for lines."""
        spans = {
            place: views.streams.OffsetsView(first=first, last=last)
            for place, (first, last) in sorted(self._spans.items())
        }
        view = views.streams.TopicLinesWrittenView(
            topic=self._name, written=written, partitions=spans
        )
        return view, str(self)

    def __str__(self) -> str:
        spans = sorted(self._spans.items())
        return ", ".join(f"{place}:{output.range_text(*span)}" for place, span in spans)


def _bytes_of(value: str, in_base64: bool) -> bytes:
    if not in_base64:
        return os.fsencode(value)
    try:
        return os.fsencode(from_text(value, BASE64))
    except ValueError as error:
        raise InvalidInput(f"{error}; give VALUE as base64, or leave --base64 out") from None


def write_given(target: Stream | Topic, given: WriteFlags, as_json: bool) -> None:
    """Write what a command was given to a stream or a topic, and print where it went."""
    from headwater.log.topic import Topic

    where: Any = _InTopic(target) if isinstance(target, Topic) else _InStream(target)
    if given.tag is None or given.value is None:
        _write_lines(target, given, where, as_json)
        return
    value, headers = _bytes_of(given.value, given.in_base64), headers_of(given.header)
    message: list[Any] = [(given.tag, value, headers)]
    where.add(
        target.write_many(
            message, backlog=given.backlog, producer=given.producer, sequence=given.sequence
        )
    )
    view, told = where.one()
    output.answer(view, told, as_json)


def _write_lines(target: Stream | Topic, given: WriteFlags, where: Any, as_json: bool) -> None:
    """Write a message per line and print how many; even when an error or Ctrl-C ends it."""
    source = sys.stdin.buffer
    split = Split(given.line_tag or "", given.separator)
    headers = headers_of(given.header)
    written = 0
    try:
        with _progress(source) as progress:
            for batch in batches(source, given.batch):
                entries: list[Any] = [
                    split.entry(line, number) for number, line in enumerate(batch, written + 1)
                ]
                if headers:
                    entries = [(*entry, headers) for entry in entries]
                where.add(target.write_many(entries, backlog=given.backlog))
                written += len(batch)
                progress(len(batch), sum(map(len, batch)) + len(batch))
    except (HeadwaterError, KeyboardInterrupt):
        if written:
            output.warn(f"written before that: {output.counted(written, 'message')}, {where}")
        raise
    view, told = where.lines(written)
    output.answer(
        view,
        f"written {output.counted(written, 'message')}, {told}"
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


@contextmanager
def _progress(source: BinaryIO) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on standard error when that is a terminal, unless somebody types the lines.

    Yields what is called with how many lines were written, and how many bytes they have.
    """
    console = output.console(stderr=True)
    if console.is_terminal and source.isatty():
        # No bar: it would be drawn over what is typed.
        typer.echo("a message per line; Ctrl-D ends", err=True)
    if not console.is_terminal or source.isatty():
        yield lambda _lines, _size: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.fields[lines]} messages"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("lines", total=_size(source), lines=0)

        def step(lines: int, size: int) -> None:
            bar.update(task, advance=size, lines=bar.tasks[0].fields["lines"] + lines)

        yield step


def _size(source: BinaryIO) -> int | None:
    """Return the size of a file; a pipe has none."""
    try:
        found = os.fstat(source.fileno())
    except io.UnsupportedOperation:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
