"""Messages in and out of a stream: write, read, tail."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from headwater import views
from headwater.cli import line_input, output
from headwater.cli.line_format import Format, LineFormat, check_format
from headwater.cli.options import (
    AsJson,
    BatchSize,
    BlockMs,
    Count,
    StoreUrl,
    StreamName,
    connected,
    interruptible,
    known_stream,
)

if TYPE_CHECKING:
    from headwater.log.types import Message
    from headwater.views.streams import GoneView

PAGE = 10_000
# How long one call of a follower waits; a signal ends the wait at once. Between two calls it looks
# whether anybody still reads what it prints.
FOLLOW_MS = 1_000


def write(
    name: StreamName,
    tag: Annotated[str | None, typer.Argument(metavar="TAG", help="One message: its tag.")] = None,
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="One message: its value.")
    ] = None,
    line_tag: Annotated[
        str | None, typer.Option("--tag", help="Lines of stdin: the tag of every message.")
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            "--separator", help="Lines of stdin: the text between tag and value, where it is first."
        ),
    ] = None,
    batch: BatchSize = 1000,
    backlog: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Then evict old messages, but keep at least N, and all needed."
        ),
    ] = None,
    producer: Annotated[
        str | None,
        typer.Option(help="One message: who writes it. A repeat with the same --sequence is one."),
    ] = None,
    sequence: Annotated[
        int | None,
        typer.Option(min=0, help="One message: its number, which grows from write to write."),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write one message, TAG and VALUE; or, without them, a message for each line of stdin.

    Lines are written as they arrive, in batches that are in the log whole or not at all.
    Without --tag and --separator the whole line is the value, and the tag is empty.
    After an error or a signal, standard error says how much was written before.
    """
    if (tag is None) != (value is None):
        raise typer.BadParameter("give TAG and VALUE, or neither and lines on standard input")
    if (producer is None) != (sequence is None):
        raise typer.BadParameter("--producer and --sequence go together")
    if tag is None or value is None:
        if line_tag is not None and separator is not None:
            raise typer.BadParameter("--tag and --separator exclude each other")
        if producer is not None:
            raise typer.BadParameter("--producer is for one message: give TAG and VALUE")
        if separator == "":
            raise typer.BadParameter("--separator must not be empty")
        split = line_input.Split(line_tag or "", separator)
        with connected(store) as hw, interruptible():
            line_input.write_lines(hw.stream(name), split, batch, backlog, as_json)
        return
    if line_tag is not None or separator is not None:
        raise typer.BadParameter("--tag and --separator are for lines from standard input")
    with connected(store) as hw:
        offsets = hw.stream(name).write_many(
            [(tag, os.fsencode(value))], backlog=backlog, producer=producer, sequence=sequence
        )
    done = views.streams.WrittenView(stream=name, offset=offsets.start)
    output.answer(done, str(done.offset), as_json)


def read(
    name: StreamName,
    offset: Annotated[
        int | None,
        typer.Option("--offset", "-o", min=1, help="The first offset.", show_default="first"),
    ] = None,
    count: Count = 10,
    block_ms: BlockMs = 0,
    group: Annotated[
        str | None, typer.Option(help="Read as a member of this group instead of by offset.")
    ] = None,
    ack_ms: Annotated[
        int | None,
        typer.Option(
            "--ack-ms",
            "--retry-ms",
            min=1,
            help="Group: milliseconds until unacknowledged messages are redelivered.",
        ),
    ] = None,
    expire_ms: Annotated[
        int | None,
        typer.Option(min=1, help="Group: milliseconds until unacknowledged messages are given up."),
    ] = None,
    line_format: LineFormat = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Read messages by offset, which changes nothing; or take them as a member of a group.

    Without --ack-ms, a message that a group's member took counts as acknowledged.
    """
    if group is None and (ack_ms is not None or expire_ms is not None):
        raise typer.BadParameter("--ack-ms and --expire-ms need --group")
    if group is not None and offset is not None:
        raise typer.BadParameter("--offset and --group exclude each other; see `stream seek`")
    form = check_format(line_format, as_json)
    with known_stream(store, name) as stream:
        if group is not None:
            taken = stream.group(group).read(
                count, block_ms=block_ms, ack_ms=ack_ms, expire_ms=expire_ms
            )
            _show(taken, 0, as_json, form)
            return
        facts = stream.info()
        at = facts.first if offset is None else offset
        pages: list[Message | None] = []
        start, end = at, at + count
        while at < end:
            page = stream.read(at, min(end - at, PAGE), block_ms=0 if at > start else block_ms)
            if not page:
                break
            if as_json or form:
                _show(page, at, as_json, form)
            else:
                pages += page
            at += len(page)
        if pages:
            _show(pages, start, as_json, form)
        if at == start and count:
            held = output.range_text(facts.first, facts.last) if facts.length else "nothing"
            output.warn(f"nothing from offset {start} on; the stream holds {held}")


def tail(
    name: StreamName,
    last: Annotated[
        int | None,
        typer.Option(
            "--lines",
            "-n",
            min=0,
            metavar="N",
            help="Begin with the newest N messages.",
            show_default="10, or --count when it is less",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("--count", "-c", min=0, metavar="N", help="Stop after N messages."),
    ] = None,
    line_format: LineFormat = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the newest messages, then each new one as it arrives, until Ctrl-C or SIGTERM.

    Either signal ends it with exit code 0, and so does the end of whoever reads its output.
    """
    form = check_format(line_format, as_json)
    left = sys.maxsize if count is None else count
    begin = min(10, left) if last is None else last
    with (
        known_stream(store, name) as stream,
        suppress(KeyboardInterrupt),
        interruptible(),
        output.ending_with_its_reader(),
    ):
        facts = stream.info()
        at = max(facts.first, facts.last - begin + 1)
        while left and output.is_read():
            page = stream.read(at, min(left, PAGE), block_ms=FOLLOW_MS)
            for found in views.streams.messages_and_gaps(page, at):
                if as_json:
                    output.show_json(views.streams.found_view(found))
                elif form:
                    form.show([found])
                else:
                    _show_line(found)
            at += len(page)
            left -= sum(message is not None for message in page)


def _show(page: Sequence[Message | None], at: int, as_json: bool, form: Format | None) -> None:
    found = list(views.streams.messages_and_gaps(page, at))
    if as_json:
        output.show_json(*map(views.streams.found_view, found))
        return
    if form:
        form.show(found)
        return
    headings, rows = ["offset", "time", "tag", "value"], [_row(one) for one in found]
    attempts = [getattr(one, "attempt", None) for one in found]
    if any(attempts):
        headings.insert(3, "attempt")
        rows = [(*row[:3], attempt, row[3]) for row, attempt in zip(rows, attempts, strict=True)]
    output.show_table(headings, rows)


def _row(found: Message | GoneView) -> tuple[object, ...]:
    if isinstance(found, views.streams.GoneView):
        return (output.range_text(found.gone.first, found.gone.last), None, None, "gone")
    return (found.offset, output.time_text(found.time_ms), found.tag, found.value)


def _show_line(found: Message | GoneView) -> None:
    offset, time, tag, value = (output.readable(cell) for cell in _row(found))
    line = Text.assemble((offset, "cyan"), "  ", (time, "dim"), "  ", (tag, "bold"), "  ", value)
    output.console().print(line, soft_wrap=True)
