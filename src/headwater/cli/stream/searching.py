"""``headwater stream search``: messages by tag, text or a field, within a budget."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater import views
from headwater.cli import options, output
from headwater.cli.line_format import LineFormat, check_format
from headwater.cli.message_options import FirstOffset
from headwater.cli.message_output import show_page
from headwater.cli.options import AsJson, Count, StoreUrl, StreamName, known_stream


def search(
    name: StreamName,
    tag: Annotated[
        str | None, typer.Option(help="The tag; * stands for any text.", show_default=False)
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="A text that is in the value.", show_default=False)
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION",
            help="A field of a JSON value: a path, or one with =, !=, < or > and a value.",
            show_default=False,
        ),
    ] = None,
    offset: FirstOffset = None,
    newest_first: Annotated[
        bool, typer.Option("--newest-first", help="Search back from the end, or from --offset.")
    ] = False,
    count: Count = 10,
    max_messages: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Search at most N messages.", show_default="all"),
    ] = None,
    max_time: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="Stop after 500ms, 10s, 5m.", show_default="never"),
    ] = None,
    line_format: LineFormat = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Search messages by tag, by a text or by a field of JSON; reads all messages on its way.

    Standard error says how much was searched, and from which offset to continue.
    """
    form = check_format(line_format, as_json)
    with known_stream(store, name) as stream:
        found = stream.search(
            tag=tag,
            text=text,
            where=where,
            start=offset,
            newest_first=newest_first,
            count=count,
            max_messages=max_messages,
            max_ms=None if max_time is None else options.duration_ms(max_time, "--max-time"),
        )
    if as_json:
        output.show_json(views.searches.SearchedView.of(found, name))
        return
    if found.messages:
        show_page(found.messages, False, form)
    further = "" if found.next is None else f"; continue with --offset {found.next}"
    total = found.last - found.first + 1
    output.warn(f"searched {found.searched:,} of {total:,} in {found.ms:,} ms{further}")
