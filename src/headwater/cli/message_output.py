"""Messages of streams, topics and queues as tables, lines, JSON, or in a user's own form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from headwater import views
from headwater.cli import output
from headwater.cli.line_format import Format

if TYPE_CHECKING:
    from headwater.log.types import Message, TopicMessage
    from headwater.queue.types import QueueItem
    from headwater.views.streams import GoneView

Found: TypeAlias = "Message | TopicMessage | GoneView"


def show_page(found: Sequence[Found], as_json: bool, form: Format | None) -> None:
    """Print messages, and which of those asked for are gone."""
    if as_json:
        output.show_json(*map(views.streams.found_view, found))
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
    output.show_table(headings, rows)


def show_each(found: Sequence[Found], as_json: bool, form: Format | None) -> None:
    """Print messages one by one, as they arrive."""
    for one in found:
        if as_json:
            output.show_json(views.streams.found_view(one))
        elif form:
            form.show([one])
        else:
            _show_line(one)


def _partition(found: Found) -> int | None:
    place = getattr(found, "partition", None)
    return place if isinstance(place, int) else None


def _headers(found: Found) -> bytes | None:
    return None if isinstance(found, views.streams.GoneView) else output.headers_text(found.headers)


def _row(found: Found) -> tuple[object, ...]:
    if isinstance(found, views.streams.GoneView):
        return (output.range_text(found.gone.first, found.gone.last), None, None, "gone")
    return (found.offset, output.time_text(found.time_ms), found.tag, found.value)


def _show_line(found: Found) -> None:
    from rich.text import Text

    offset, time, tag, value = (output.readable(cell) for cell in _row(found))
    place = _partition(found)
    where = offset if place is None else f"{place}:{offset}"
    line = Text.assemble((where, "cyan"), "  ", (time, "dim"), "  ", (tag, "bold"), "  ")
    if headers := _headers(found):
        line.append(f"{output.readable(headers)}  ", "dim")
    line.append(value)
    output.console().print(line, soft_wrap=True)


def show_items(items: list[QueueItem], as_json: bool, time: str, nothing: str) -> None:
    """Print messages as they are stored in a queue; ``time`` says what their time is."""
    columns: dict[str, Callable[[QueueItem], object]] = {
        "id": lambda item: item.id,
        "priority": lambda item: item.priority,
        "attempt": lambda item: item.attempt,
        "pushed": lambda item: output.time_text(item.pushed_ms),
        time: lambda item: output.time_text(item.due_ms or 0),
    }
    if any(item.headers for item in items):
        columns["headers"] = lambda item: output.headers_text(item.headers)
    columns["value"] = lambda item: item.value
    if any(item.cause for item in items):
        columns["cause"] = lambda item: item.cause and str(item.cause)
    # Behind the five above: what may be long, and wraps.
    fold = len(columns) - 5
    output.show_list(
        items, views.queues.QueueMessageView.of, columns, as_json, nothing=nothing, fold=fold
    )
