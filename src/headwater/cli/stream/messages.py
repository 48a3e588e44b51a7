"""Messages in and out of a stream: write, read, tail."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from headwater import views
from headwater.cli import line_input, output
from headwater.cli.line_format import LineFormat, check_format
from headwater.cli.message_options import NewestLines, ReadFlags, StopAfter, StreamWriteFlags
from headwater.cli.message_output import show_each, show_page
from headwater.cli.option_groups import grouped
from headwater.cli.options import (
    AsJson,
    StoreUrl,
    StreamName,
    connected,
    interruptible,
    known_stream,
)

if TYPE_CHECKING:
    from headwater.log.types import Message

PAGE = 10_000
# How long one call of a follower waits; a signal ends the wait at once. Between two calls it looks
# whether anybody still reads what it prints.
FOLLOW_MS = 1_000


@grouped
def write(
    name: StreamName,
    given: StreamWriteFlags,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write one message, TAG and VALUE; or, without them, a message for each line of stdin.

    Lines are written as they arrive, in batches that are written as a whole or not at all. Without
    --tag and --separator the whole line is the value, and the tag is empty. After an error or a
    signal, standard error says how much was written before.
    """
    given.check()
    with connected(store) as hw, interruptible():
        line_input.write_given(hw.stream(name), given, as_json)


@grouped
def read(
    name: StreamName,
    wanted: ReadFlags,
    line_format: LineFormat = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Read messages by offset, which changes nothing; or take them as a member of a group.

    Without --ack-ms, a message that a group's member took counts as acknowledged.
    """
    wanted.check()
    if wanted.group is not None and wanted.offset is not None:
        raise typer.BadParameter("--offset and --group exclude each other; see `stream seek`")
    form = check_format(line_format, as_json)
    with known_stream(store, name) as stream:
        if wanted.group is not None:
            show_page(wanted.take(stream.group(wanted.group)), as_json, form)
            return
        facts = stream.info()
        at = facts.first if wanted.offset is None else wanted.offset
        pages: list[Message | None] = []
        start, end = at, at + wanted.count
        while at < end:
            page = stream.read(
                at, min(end - at, PAGE), block_ms=0 if at > start else wanted.block_ms
            )
            if not page:
                break
            if as_json or form:
                show_page(list(views.streams.messages_and_gaps(page, at)), as_json, form)
            else:
                pages += page
            at += len(page)
        if pages:
            show_page(list(views.streams.messages_and_gaps(pages, start)), as_json, form)
        if at == start and wanted.count:
            held = output.range_text(facts.first, facts.last) if facts.length else "nothing"
            output.warn(f"nothing from offset {start} on; the stream holds {held}")


def tail(
    name: StreamName,
    last: NewestLines = None,
    count: StopAfter = None,
    line_format: LineFormat = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the newest messages, then each new one as it arrives, until Ctrl-C or SIGTERM.

    Either signal ends it with exit code 0, and so does the end of the program that reads its
    output.
    """
    form = check_format(line_format, as_json)
    left = sys.maxsize if count is None else count
    begin = min(10, left) if last is None else last
    with known_stream(store, name) as stream, suppress(KeyboardInterrupt), interruptible():
        facts = stream.info()
        at = max(facts.first, facts.last - begin + 1)
        while left and output.is_read():
            page = stream.read(at, min(left, PAGE), block_ms=FOLLOW_MS)
            show_each(list(views.streams.messages_and_gaps(page, at)), as_json, form)
            at += len(page)
            left -= sum(message is not None for message in page)
