"""Messages in and out of a stream: write, read, tail."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from headwater.cli import line_input, output
from headwater.cli.options import AsJson, StoreUrl, StreamName, connected, known_stream

if TYPE_CHECKING:
    from headwater.log.types import Message

PAGE = 10_000
# How long one call of a follower waits; Ctrl-C ends the wait at once.
FOLLOW_MS = 5_000

_Count = Annotated[int, typer.Option("--count", "-c", min=0, help="How many messages at most.")]


def write(
    name: StreamName,
    tag: Annotated[
        str | None, typer.Argument(metavar="TAG", help="Tag of the one message to write.")
    ] = None,
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="Value of the one message to write.")
    ] = None,
    line_tag: Annotated[
        str | None, typer.Option("--tag", help="Lines from stdin: the tag of every message.")
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            "--separator", help="Lines from stdin: what divides tag and value, at its first place."
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, max=100_000, help="Lines from stdin: at most so many at once.")
    ] = 1000,
    backlog: Annotated[
        int | None,
        typer.Option(min=0, help="Then evict old messages, but keep at least so many."),
    ] = None,
    producer: Annotated[
        str | None, typer.Option(help="Write the one message only once, under this name ...")
    ] = None,
    sequence: Annotated[
        int | None,
        typer.Option(min=0, help="... and this number, which grows from write to write."),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write one message, TAG and VALUE; or, without them, a message for each line of stdin.

    Lines are written as they come, in batches that are in the log whole or not at all.
    Without --tag and --separator the whole line is the value and the tag is empty.
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
        with connected(store) as hw:
            line_input.write_lines(hw.stream(name), split, batch, backlog, as_json)
        return
    if line_tag is not None or separator is not None:
        raise typer.BadParameter("--tag and --separator are for lines from standard input")
    with connected(store) as hw:
        offsets = hw.stream(name).write_many(
            [(tag, os.fsencode(value))], backlog=backlog, producer=producer, sequence=sequence
        )
    if as_json:
        output.show_json({"stream": name, "offset": offsets.start})
    else:
        output.say(str(offsets.start))


def read(
    name: StreamName,
    offset: Annotated[
        int | None,
        typer.Option("--offset", "-o", min=1, help="Where to begin.", show_default="first"),
    ] = None,
    count: _Count = 10,
    block_ms: Annotated[
        int, typer.Option(min=0, help="Wait so long for a first message to come.")
    ] = 0,
    group: Annotated[
        str | None, typer.Option(help="Read as a member of this group instead of by offset.")
    ] = None,
    retry_ms: Annotated[
        int | None, typer.Option(min=1, help="Group: what is not acknowledged comes again then.")
    ] = None,
    expire_ms: Annotated[
        int | None, typer.Option(min=1, help="Group: what is not acknowledged is given up then.")
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Read messages by offset, which changes nothing; or take them as a member of a group."""
    if group is None and (retry_ms is not None or expire_ms is not None):
        raise typer.BadParameter("--retry-ms and --expire-ms need --group")
    if group is not None and offset is not None:
        raise typer.BadParameter("--offset and --group exclude each other; see `stream seek`")
    with known_stream(store, name) as stream:
        if group is not None:
            taken = stream.group(group).read(
                count, block_ms=block_ms, retry_ms=retry_ms, expire_ms=expire_ms
            )
            _show(taken, 0, as_json)
            return
        facts = stream.info()
        at = facts.first if offset is None else offset
        pages: list[Message | None] = []
        start, end = at, at + count
        while at < end:
            page = stream.read(at, min(end - at, PAGE), block_ms=0 if at > start else block_ms)
            if not page:
                break
            if as_json:
                _show(page, at, as_json)
            else:
                pages += page
            at += len(page)
        if not as_json and pages:
            _show(pages, start, as_json)
        if at == start and count:
            held = output.range_text(facts.first, facts.last) if facts.length else "nothing"
            output.warn(f"nothing from offset {start} on; the stream holds {held}")


def tail(
    name: StreamName,
    last: Annotated[int, typer.Option("--lines", "-n", min=0, help="Begin so many back.")] = 10,
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=0, help="Stop after so many messages.")
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the newest messages, then each new one as it comes, until Ctrl-C."""
    with known_stream(store, name) as stream, suppress(KeyboardInterrupt):
        facts = stream.info()
        at = max(facts.first, facts.last - last + 1)
        left = sys.maxsize if count is None else count
        while left:
            page = stream.read(at, min(left, PAGE), block_ms=FOLLOW_MS)
            for first, found in _runs(page, at):
                if as_json:
                    output.show_json(_row_json(first, found))
                else:
                    _show_line(first, found)
            at += len(page)
            left -= sum(message is not None for message in page)


def _runs(page: Iterable[Message | None], at: int) -> Iterator[tuple[int, Message | int]]:
    """Give each message with its offset, and for a run of gone ones its first and last offset."""
    gone_since = None
    for offset, message in enumerate(page, at):
        if message is None:
            gone_since = gone_since or offset
            continue
        if gone_since:
            yield gone_since, offset - 1
            gone_since = None
        yield message.offset, message
    if gone_since:
        yield gone_since, offset


def _row_json(first: int, found: Message | int) -> dict[str, Any]:
    if isinstance(found, int):
        return {"gone": {"first": first, "last": found}}
    return output.message_json(found)


def _row(first: int, found: Message | int) -> tuple[object, ...]:
    if isinstance(found, int):
        return (output.range_text(first, found), None, None, "gone")
    return (found.offset, output.time_text(found.time_ms), found.tag, found.value)


def _show(page: Iterable[Message | None], at: int, as_json: bool) -> None:
    found = list(_runs(page, at))
    if as_json:
        output.show_json(*(_row_json(*run) for run in found))
        return
    headings, rows = ["offset", "time", "tag", "value"], [_row(*run) for run in found]
    if any(not isinstance(run, int) and run.attempt for _, run in found):
        headings.insert(3, "attempt")
        rows = [
            (*row[:3], None if isinstance(run, int) else run.attempt, row[3])
            for row, (_, run) in zip(rows, found, strict=True)
        ]
    output.show_table(headings, rows)


def _show_line(first: int, found: Message | int) -> None:
    offset, time, tag, value = (output.readable(cell) for cell in _row(first, found))
    line = Text.assemble((offset, "cyan"), "  ", (time, "dim"), "  ", (tag, "bold"), "  ", value)
    output.console().print(line, soft_wrap=True)
