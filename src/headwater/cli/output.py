"""What commands print: tables for people, JSON for programs; data never acts on the terminal."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from headwater.log.types import GroupInfo, Message, StreamInfo

# A table that goes to a file or a pipe is as wide as what is in it.
_UNBOUNDED = 1_000_000


def console(*, stderr: bool = False) -> Console:
    """Give a console for the present standard output or error."""
    found = Console(stderr=stderr, highlight=False)
    if not found.is_terminal:
        found.width = _UNBOUNDED
    return found


def show_json(*documents: Any) -> None:
    """Print JSON documents, one a line, in UTF-8 whatever the locale."""
    lines = [json.dumps(document, ensure_ascii=False) for document in documents]
    if lines:
        typer.echo("\n".join(lines).encode())


def show_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    fold: int = 1,
    styles: Mapping[str, str] | None = None,
) -> None:
    """Print a table: numbers to the right; the last ``fold`` columns give way when it is narrow.

    ``styles`` are of cells that hold nothing but such a word.
    """
    cells = [[readable(cell) for cell in row] for row in rows]
    right = [
        bool(cells) and all(_is_number(row[place]) for row in cells)
        for place in range(len(headings))
    ]
    out = console()
    if not out.is_terminal:
        typer.echo("\n".join(_plain_lines(headings, cells, right)).encode())
        return
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


def _plain_lines(
    headings: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]
) -> Iterator[str]:
    """Lay out a table for a file or a pipe: as wide as what is in it, and quick however long."""
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


def show_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print a list of names and what they stand at."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, fact in facts:
        table.add_row(Text(name), Text(readable(fact)))
    console().print(table)


def say(text: str, style: str = "") -> None:
    """Print one line."""
    console().print(Text(readable(text), style), soft_wrap=True)


def warn(text: str) -> None:
    """Print one line on standard error."""
    typer.echo(text, err=True)


def _is_number(text: str) -> bool:
    return text.replace("-", "0").isdecimal()


def readable(data: object) -> str:
    """Spell anything so that a terminal only shows it; None is a dash."""
    if data is None:
        return "-"
    text = data.decode("utf-8", "backslashreplace") if isinstance(data, bytes) else str(data)
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def time_text(time_ms: int) -> str | None:
    """Spell a time of the log in UTC, as `stream seek` understands it; 0 is no time."""
    if not time_ms:
        return None
    try:
        time = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
    except (OverflowError, ValueError):
        return f"{time_ms} ms"  # a writer of its own times may be beyond the year 9999
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def size_text(size: int) -> str:
    """Spell a number of bytes."""
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1000 or unit == "TB":
            break
        amount /= 1000
    return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"


def range_text(first: int, last: int) -> str:
    """Spell offsets: 5, or 5-9."""
    return str(first) if first == last else f"{first}-{last}"


def value_json(value: bytes) -> dict[str, str]:
    """Give a value as text, or, when it is not UTF-8, in base 64 with a mark that says so."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value": base64.b64encode(value).decode(), "encoding": "base64"}


def message_json(message: Message) -> dict[str, Any]:
    """Give a message for JSON; ``attempt`` only when it came through a group."""
    found = {
        "offset": message.offset,
        "tag": message.tag,
        **value_json(message.value),
        "time_ms": message.time_ms,
    }
    return found | {"attempt": message.attempt} if message.attempt else found


def stream_json(facts: StreamInfo) -> dict[str, Any]:
    """Give what is known of a stream for JSON."""
    return asdict(facts)


def group_json(stream: str, facts: GroupInfo) -> dict[str, Any]:
    """Give what is known of a group for JSON."""
    return {"stream": stream, "group": facts.name} | {
        name: fact for name, fact in asdict(facts).items() if name != "name"
    }
