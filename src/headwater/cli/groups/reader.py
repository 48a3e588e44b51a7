"""``headwater reader``: those outside the log that retention waits for, and up to where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import completing, options, output
from headwater.cli.derived import answer
from headwater.cli.options import (
    AsJson,
    OnlyStream,
    Position,
    StoreUrl,
    StreamName,
    connected,
    known,
    known_stream,
    similar,
)
from headwater.doors.catalogue import STREAM
from headwater.errors import InvalidInput, UnknownReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.log.stream import Stream
    from headwater.views.streams import ReaderView

app = typer.Typer()

ReaderName = Annotated[
    str,
    typer.Argument(
        metavar="READER",
        help="Name of the reader.",
        show_default=False,
        autocompletion=completing.readers,
    ),
]
# The readers of SQL consumers have this before their names; see outbox/plan.py.
_CONSUMER = "consumer:"


@app.command("list")
def list_readers(
    name: OnlyStream = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show every registered reader, of one stream or of all, and the offset that it needs next."""
    with connected(store) as hw:
        streams = [known(hw, name).info()] if name else hw.store.run(views.overview.all_streams())
    found = [
        views.streams.ReaderView.of(stream, reader)
        for stream in streams
        for reader in sorted(stream.readers)
    ]
    columns: dict[str, Callable[[ReaderView], object]] = {
        "reader": lambda row: row.reader,
        "next": lambda row: row.next,
        "lag": lambda row: row.lag,
        "behind": lambda row: output.age_text(row.lag_ms),
    }
    output.show_list(
        found,
        lambda row: row,
        columns if name else {"stream": lambda row: row.stream} | columns,
        as_json,
        nothing="no readers: consumers and queries register themselves",
    )


@app.command(context_settings=options.TAKES_STEPS)
def seek(
    name: StreamName,
    reader: ReaderName,
    to: Position,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Set which offset a reader needs next: retention keeps everything from there on.

    A reader that runs reports its own position again. Move a SQL consumer with `consumer seek`.
    """
    sought = options.target(to)
    if reader.startswith(_CONSUMER):
        raise InvalidInput(
            f"{reader!r} reports the position of a SQL consumer; "
            f"use `headwater consumer seek {reader.removeprefix(_CONSUMER)}`"
        )
    with known_stream(store, name) as stream:
        _require(stream, reader)
        position = options.from_here(sought, stream.info().readers[reader])
        offset = stream.seek_reader(reader, position)
    answer(STREAM.operation("seek_reader"), (name, reader), offset, as_json)


@app.command()
def forget(
    name: StreamName, reader: ReaderName, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Stop retention of a stream from waiting for a reader; a running reader registers again."""
    with known_stream(store, name) as stream:
        _require(stream, reader)
        stream.forget_reader(reader)
    answer(STREAM.operation("forget_reader"), (name, reader), None, as_json)


@app.command()
def remove(reader: ReaderName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Forget a reader that will not come back, on every stream."""
    with connected(store) as hw:
        streams = hw.store.run(views.overview.all_streams())
        held = [stream.name for stream in streams if reader in stream.readers]
        if not held:
            others = {one for stream in streams for one in stream.readers}
            raise UnknownReader(reader, similar=similar(reader, others))
        for name in held:
            hw.stream(name).forget_reader(reader)
    done = views.streams.ReaderForgottenView(reader=reader, streams=held)
    output.answer(done, f"forgot {reader} on {', '.join(held)}", as_json)


def _require(stream: Stream, reader: str) -> None:
    readers = stream.info().readers
    if reader not in readers:
        raise UnknownReader(reader, stream.name, similar(reader, readers))
