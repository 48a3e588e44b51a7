"""What commands print: tables for people, views as JSON for programs.

Data is printed so that it never acts on the terminal.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer

from headwater import views

if TYPE_CHECKING:
    from rich.console import Console

    from headwater.log.types import GroupInfo, Message, TopicMessage
    from headwater.queue.types import QueueItem
    from headwater.views.record import View
    from headwater.views.streams import GoneView


# Rich is imported for what needs it: a plain line and JSON are printed without.

# Rich is imported for what needs it: a plain line and JSON are printed without.

T = TypeVar("T")

# A table that goes to a file or a pipe is as wide as its contents.
_UNBOUNDED = 1_000_000

# A column that wraps is at least so wide; a table without room for that is printed row by row.
_LEAST_FOLDED = 16

# Columns of what users write: a text, even when it is made of digits.
_TEXTS = {"tag", "value", "member"}


def console(*, stderr: bool = False) -> Console:
    """Return a console for the present standard output or error."""
    from headwater.cli.screens import PlainConsole

    found = PlainConsole(stderr=stderr, highlight=False)
    if not found.is_terminal:
        found.width = _UNBOUNDED
    return found


@contextmanager
def ending_with_its_reader() -> Iterator[None]:
    """End a block quietly when the reader of standard output has gone."""
    try:
        yield
    except BrokenPipeError:
        # What is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_read() -> bool:
    """Return whether somebody may still read standard output: its pipe is not closed."""
    try:
        fd = sys.stdout.fileno()
    except (OSError, ValueError):
        return True  # no file: a test reads it
    looking = select.poll()
    looking.register(fd, 0)
    return not any(what & (select.POLLERR | select.POLLHUP) for _, what in looking.poll(0))


def show_json(*records: View) -> None:
    """Print views as JSON, one a line, in UTF-8 whatever the locale."""
    if records:
        typer.echo(b"\n".join(record.to_json() for record in records))


def answer(record: View, sentence: str, as_json: bool) -> None:
    """Print what a command did: the view as JSON, or one sentence."""
    if as_json:
        show_json(record)
    else:
        say(sentence)


def show_list(
    found: Sequence[T],
    view: Callable[[T], View],
    columns: Mapping[str, Callable[[T], object]],
    as_json: bool,
    *,
    nothing: str,
    fold: int = 1,
    styles: Mapping[str, str] | None = None,
) -> None:
    """Print what was found: a view of each as JSON, or a table; ``nothing`` when it is empty.

    ``columns`` maps the heading of each column to what it shows of a row.
    """
    if as_json:
        show_json(*map(view, found))
    elif found:
        rows = [[cell(row) for cell in columns.values()] for row in found]
        show_table(list(columns), rows, fold=fold, styles=styles)
    else:
        say(nothing)


def show_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    fold: int = 1,
    styles: Mapping[str, str] | None = None,
) -> None:
    """Print a table: numbers to the right; the last ``fold`` columns wrap when it is narrow.

    Where a terminal is too narrow even so, each row becomes several lines, so that no number is
    cut. What users write is a text, even when it is made of digits, and stays on the left.
    ``styles`` maps a word to the style of the cells that hold only that word.
    """
    cells = [[readable(cell) for cell in row] for row in rows]
    right = [
        bool(cells) and heading not in _TEXTS and all(_is_number(row[place]) for row in cells)
        for place, heading in enumerate(headings)
    ]
    out = console()
    if not out.is_terminal:
        typer.echo("\n".join(_plain_lines(headings, cells, right)).encode())
        return
    if _least_width(headings, cells, fold) > out.width:
        _show_apart(headings, cells, styles or {}, out)
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(
            heading,
            justify="right" if right[place] else "left",
            no_wrap=place < len(headings) - fold,
            overflow="fold",
        )
    for row in cells:
        table.add_row(*(Text(cell, (styles or {}).get(cell, "")) for cell in row))
    out.print(table)


def _least_width(headings: Sequence[str], cells: Sequence[Sequence[str]], fold: int) -> int:
    """Return the columns of a terminal that a table needs to be readable."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(headings, *cells, strict=True)]
    folded = len(widths) - fold
    widths[folded:] = [min(width, _LEAST_FOLDED) for width in widths[folded:]]
    return sum(widths) + 3 * (len(widths) - 1)


def _show_apart(
    headings: Sequence[str],
    cells: Sequence[Sequence[str]],
    styles: Mapping[str, str],
    out: Console,
) -> None:
    """Print each row as lines: a heading with its cell."""
    for number, row in enumerate(cells):
        if number:
            out.print()
        show_facts(zip(headings, row, strict=True), out, styles)


def _plain_lines(
    headings: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]
) -> Iterator[str]:
    """Yield the lines of a table for a file or a pipe: as wide as needed, quick however long."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(headings, *cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        fitted = []
        for cell, width, to_the_right in zip(row, widths, right, strict=True):
            room = " " * (width - cell_len(cell))
            fitted.append(room + cell if to_the_right else cell + room)
        return "   ".join(fitted).rstrip()

    yield line(headings)
    yield "─" * (sum(widths) + 3 * (len(widths) - 1))
    yield from map(line, cells)


def show_facts(
    facts: Iterable[tuple[str, object]],
    out: Console | None = None,
    styles: Mapping[str, str] | None = None,
) -> None:
    """Print names, each with its fact."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, fact in facts:
        cell = readable(fact)
        table.add_row(Text(name), Text(cell, (styles or {}).get(cell, "")))
    (out or console()).print(table)


def say(text: str, style: str = "") -> None:
    """Print one line."""
    if not style:
        typer.echo(readable(text))
        return
    from rich.text import Text

    console().print(Text(readable(text), style), soft_wrap=True)


def warn(text: str) -> None:
    """Print one line on standard error."""
    typer.echo(text, err=True)


def _is_number(text: str) -> bool:
    return text.replace("-", "0").isdecimal()


def readable(data: object) -> str:
    """Return anything as text that a terminal only shows; None is a dash."""
    if data is None:
        return "-"
    text = data.decode("utf-8", "backslashreplace") if isinstance(data, bytes) else str(data)
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def headers_text(headers: Mapping[str, bytes]) -> bytes | None:
    """Return headers as ``--header`` takes them, with spaces in between; None without any."""
    return b" ".join(b"%b=%b" % (name.encode(), headers[name]) for name in headers) or None


def time_text(time_ms: int) -> str | None:
    """Return a time of the log in UTC, as `stream seek` reads it; 0 is no time."""
    if not time_ms:
        return None
    try:
        time = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
    except (OverflowError, ValueError):
        return f"{time_ms} ms"  # a writer of its own times may be beyond the year 9999
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def size_text(size: int) -> str:
    """Return a number of bytes in the unit that fits."""
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1000 or unit == "TB":
            break
        amount /= 1000
    return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"


def age_text(ms: int | None) -> str | None:
    """Return an age in seconds; None stays None."""
    return None if ms is None else f"{ms / 1000:.1f} s"


def counted(count: int, noun: str) -> str:
    """Return a number of things as text: 1 message, 2 messages."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def range_text(first: int, last: int) -> str:
    """Return a range of offsets as text: 5, or 5-9."""
    return str(first) if first == last else f"{first}-{last}"


FIELDS = ("offset", "time", "time_ms", "tag", "value", "attempt", "headers", "header[NAME]")
TOPIC_FIELDS = ("partition", *FIELDS)
_HEADER = re.compile(r"header\[(.+)\]")
_PART = re.compile(r"\{\{|\}\}|\{(header\[[^{}]+\]|\w*)\}|[{}]|\\[nt0\\]|[^{}\\]+|\\")
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\0": "\0", "\\\\": "\\"}


def _format_option(fields: tuple[str, ...]) -> Any:
    known = " ".join(f"{{{field}}}" for field in fields)
    return typer.Option(
        "--format",
        metavar="TEXT",
        help="Print each message as this text, with its fields in braces: "
        f"{known}. Known escapes are \\n \\t \\0.",
        show_default=False,
    )


LineFormat = Annotated[str | None, _format_option(FIELDS)]
TopicLineFormat = Annotated[str | None, _format_option(TOPIC_FIELDS)]


class Format:
    """A user's own form of a message as one line: a text whose fields stand in braces.

    In a pipe or a file the bytes of a message are printed as they are; on a terminal, so that they
    never act on it. Raises typer.BadParameter for fields that there are not.
    """

    def __init__(self, text: str, fields: tuple[str, ...]) -> None:
        self._parts: list[tuple[bool, str]] = []
        for part in _PART.finditer(text):
            if part[1] is not None:
                if part[1] not in fields and not _HEADER.fullmatch(part[1]):
                    known = " ".join(f"{{{field}}}" for field in fields)
                    raise typer.BadParameter(f"--format knows no {part[0]}; it knows {known}")
                self._parts.append((True, part[1]))
            elif part[0] in "{}":
                raise typer.BadParameter(f"--format has a single {part[0]}; write it twice")
            else:
                plain = part[0].replace("{{", "{").replace("}}", "}")
                self._parts.append((False, _ESCAPES.get(part[0], plain)))

    def show(self, found: Iterable[Message | TopicMessage | GoneView]) -> None:
        """Print messages; what is gone has no line."""
        lines = [self._line(one) for one in found if not isinstance(one, views.streams.GoneView)]
        if not lines:
            return
        if sys.stdout.isatty():
            for line in lines:
                say(line.decode("utf-8", "backslashreplace"))
        else:
            typer.echo(b"\n".join(lines))

    def _line(self, message: Message | TopicMessage) -> bytes:
        return b"".join(
            _field(message, text) if is_field else text.encode() for is_field, text in self._parts
        )


def _field(message: Message | TopicMessage, name: str) -> bytes:
    if name == "value":
        return bytes(message.value)
    if name == "headers":
        return headers_text(message.headers) or b""
    if header := _HEADER.fullmatch(name):
        return message.headers.get(header[1], b"")
    if name == "time":
        return (time_text(message.time_ms) or "").encode()
    found = getattr(message, name)
    return b"" if found is None else str(found).encode("utf-8", "surrogateescape")


def check_format(
    text: str | None, as_json: bool, fields: tuple[str, ...] = FIELDS
) -> Format | None:
    """Return the form that a command was given; None without one."""
    if text is None:
        return None
    if as_json:
        raise typer.BadParameter("--format and --json exclude each other")
    return Format(text, fields)


Found: TypeAlias = "Message | TopicMessage | GoneView"


def show_page(found: Sequence[Found], as_json: bool, form: Format | None) -> None:
    """Print messages, and which of those asked for are gone."""
    if as_json:
        show_json(*map(views.streams.found_view, found))
        return
    if form:
        form.show(found)
        return
    headings, rows = ["offset", "time", "tag", "value"], [_row(one) for one in found]
    beside = {
        "attempt": [getattr(one, "attempt", None) for one in found],
        "headers": [_headers(one) for one in found],
    }
    for heading, cells in beside.items():
        if any(cells):
            headings.insert(-1, heading)
            rows = [(*row[:-1], cell, row[-1]) for row, cell in zip(rows, cells, strict=True)]
    if any(_partition(one) is not None for one in found):
        headings.insert(0, "partition")
        rows = [(_partition(one), *row) for row, one in zip(rows, found, strict=True)]
    show_table(headings, rows)


def show_each(found: Sequence[Found], as_json: bool, form: Format | None) -> None:
    """Print messages one by one, as they arrive."""
    for one in found:
        if as_json:
            show_json(views.streams.found_view(one))
        elif form:
            form.show([one])
        else:
            _show_line(one)


def _partition(found: Found) -> int | None:
    place = getattr(found, "partition", None)
    return place if isinstance(place, int) else None


def _headers(found: Found) -> bytes | None:
    return None if isinstance(found, views.streams.GoneView) else headers_text(found.headers)


def _row(found: Found) -> tuple[object, ...]:
    if isinstance(found, views.streams.GoneView):
        return (range_text(found.gone.first, found.gone.last), None, None, "gone")
    return (found.offset, time_text(found.time_ms), found.tag, found.value)


def _show_line(found: Found) -> None:
    from rich.text import Text

    offset, time, tag, value = (readable(cell) for cell in _row(found))
    place = _partition(found)
    where = offset if place is None else f"{place}:{offset}"
    line = Text.assemble((where, "cyan"), "  ", (time, "dim"), "  ", (tag, "bold"), "  ")
    if headers := _headers(found):
        line.append(f"{readable(headers)}  ", "dim")
    line.append(value)
    console().print(line, soft_wrap=True)


def show_items(items: list[QueueItem], as_json: bool, time: str, nothing: str) -> None:
    """Print messages as they are stored in a queue; ``time`` says what their time is."""
    columns: dict[str, Callable[[QueueItem], object]] = {
        "id": lambda item: item.id,
        "priority": lambda item: item.priority,
        "attempt": lambda item: item.attempt,
        "pushed": lambda item: time_text(item.pushed_ms),
        time: lambda item: time_text(item.due_ms or 0),
    }
    if any(item.headers for item in items):
        columns["headers"] = lambda item: headers_text(item.headers)
    columns["value"] = lambda item: item.value
    if any(item.cause for item in items):
        columns["cause"] = lambda item: item.cause and str(item.cause)
    # Behind the five above: what may be long, and wraps.
    fold = len(columns) - 5
    show_list(items, views.queues.QueueItemView.of, columns, as_json, nothing=nothing, fold=fold)


def _live(facts: GroupInfo) -> int:
    from headwater.views.overview import live_members

    return len(live_members(facts, now_ms=int(time.time() * 1000)))


NO_GROUPS = "no groups: a group is created by its first read"

# What is shown of a row that has a ``group``.
GROUP_COLUMNS: dict[str, Callable[[Any], object]] = {
    "group": lambda row: row.group.name,
    "next": lambda row: row.group.next,
    "ack_offset": lambda row: row.group.ack_offset,
    "pending": lambda row: row.group.pending,
    "lag": lambda row: row.group.lag,
    "missed": lambda row: row.group.missed,
    "expired": lambda row: row.group.expired,
    "dead": lambda row: row.group.dead,
    "members": lambda row: _live(row.group),
    "waiting": lambda row: row.group.waiting,
}


def terms_text(facts: GroupInfo) -> str:
    """Return how a group hands out and what it does with dead letters."""
    return (
        f"max pending {facts.max_pending or 'without limit'}, "
        f"dead letters {facts.dead_letters or 'are dropped'}"
        f"{', in the order of each tag' if facts.ordered else ''}"
    )
