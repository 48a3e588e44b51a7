"""Messages of a stream: write, read, tail, search, replay, trace."""

from __future__ import annotations

import contextlib
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater import views
from headwater.cli import completing, line_input, options, output
from headwater.cli.options import (
    AsJson,
    Count,
    FirstOffset,
    NewestLines,
    ReadFlags,
    StopAfter,
    StoreUrl,
    StreamName,
    StreamWriteFlags,
    connected,
    grouped,
    interruptible,
    known_stream,
    refused,
)
from headwater.cli.output import LineFormat, check_format, show_each, show_page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.log.replaying import Replayed
    from headwater.log.types import Message
    from headwater.outbox.outbox import Outbox
    from headwater.views.traces import OutboxFacts


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
        output.show_json(views.streams.SearchedView.of(found, name))
        return
    if found.messages:
        show_page(found.messages, False, form)
    further = "" if found.next is None else f"; continue with --offset {found.next}"
    total = found.last - found.first + 1
    output.warn(f"searched {found.searched:,} of {total:,} in {found.ms:,} ms{further}")


def replay(
    name: StreamName,
    into: Annotated[
        str | None,
        typer.Option(metavar="STREAM", help="The stream to write to.", show_default=False),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="A sandbox group for the copies; they go to STREAM.sandbox without --into.",
            show_default=False,
        ),
    ] = None,
    first: Annotated[
        int | None, typer.Option(min=1, help="The first offset.", show_default="first")
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, help="The last offset.", show_default="last")
    ] = None,
    speed: Annotated[
        str, typer.Option(metavar="SPEED", help="1x, 10x, 0.5x, or max: as fast as possible.")
    ] = "max",
    producer: Annotated[
        str | None,
        typer.Option(
            help="Name of the producer. The same one continues where it was; another starts again.",
            show_default="by range and speed",
        ),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Copy a range of a stream into another one, once, at its own speed or faster.

    If it is interrupted, the same command continues where it was, and writes nothing twice.
    """
    from headwater.kernel.stopping import stop_on_signals

    if into is None and group is None:
        raise typer.BadParameter("give --into STREAM, --group GROUP, or both")
    if first is not None and last is not None and first > last:
        raise typer.BadParameter(f"--last {last} is before --first {first}; swap them")
    pace = _speed(speed)
    stopping = threading.Event()
    with connected(store) as hw, stop_on_signals(stopping.set):
        done = hw.replay(
            name,
            into,
            first=first,
            last=last,
            speed=pace,
            group=group,
            producer=producer,
            stop=stopping.is_set,
        )
    output.answer(views.streams.ReplayedView.of(done), _replayed_text(done), as_json)


def _speed(text: str) -> float | None:
    from headwater.log.replaying import LEAST_SPEED, MOST_SPEED

    if text == "max":
        return None
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not LEAST_SPEED <= speed <= MOST_SPEED:
        raise refused(f"{text!r} is not a speed like 1x, 10x or max", "--speed")
    return speed


def _replayed_text(done: Replayed) -> str:
    if done.last < done.first:
        return f"nothing to replay: {done.source} has no message there"
    missed = f"; {output.counted(done.missed, 'message')} had been evicted" if done.missed else ""
    copied = f"{output.counted(done.written, 'message')} written to {done.into}{missed}"
    if done.complete:
        return f"replayed {output.range_text(done.first, done.last)}: {copied}"
    return f"stopped before {done.next}: {copied}; the same command continues there"


def trace(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[STREAM]", show_default=False, autocompletion=completing.streams),
    ] = None,
    offset: Annotated[
        int | None, typer.Argument(metavar="[OFFSET]", min=1, show_default=False)
    ] = None,
    row: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="ID",
            help="The message of this row of the outbox, instead of stream and offset; with --db.",
            show_default=False,
        ),
    ] = None,
    db: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="The database of the outbox and its consumers.", show_default=False
        ),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the life of a message: outbox row, batch, offset, every group and reader, archive.

    With --db also the row of the outbox, its batch and the positions of SQL consumers.
    """
    from headwater.errors import InvalidInput
    from headwater.views.traces import archive_files, look_at_life, trace_of

    with _outbox_of(db) as outbox:
        if row is not None:
            name, offset = _place_of_row(outbox, row)
        if name is None or offset is None:
            raise typer.BadParameter("give a stream and an offset, or --row with --db")
        with connected(store) as hw:
            facts = hw.store.run(look_at_life(name, offset))
            if offset > facts.info.last:
                raise InvalidInput(
                    f"offset {offset} of {name!r} is not written yet; the last is {facts.info.last}"
                )
            message = hw.stream(name).read(offset, 1)[0]
        known = None if outbox is None else _outbox_facts(outbox, name, offset)
    found = trace_of(facts, message, offset, known, archive_files(facts, offset))
    if as_json:
        output.show_json(found)
        return
    output.show_table(
        ["where", "state", "what", "when"],
        [
            (
                f"{one.kind} {one.name}".strip(),
                one.state,
                one.text,
                "" if one.time_ms is None else output.time_text(one.time_ms),
            )
            for one in found.steps
        ],
        fold=2,
    )
    if found.groups_left_out:
        output.say(f"{found.groups_left_out} more groups were not asked")


@contextlib.contextmanager
def _outbox_of(db: str | None) -> Iterator[Outbox[Any] | None]:
    if db is None:
        yield None
        return
    from headwater.kernel.packaging import extra_needed

    with extra_needed("sql"):
        from headwater.outbox.outbox import Outbox
        from headwater.sql.engines import open_engine
    with open_engine(db) as engine:
        yield Outbox(engine)


def _place_of_row(outbox: Outbox[Any] | None, row: int) -> tuple[str, int]:
    from headwater.errors import InvalidInput
    from headwater.outbox.batches import StagedRow

    if outbox is None:
        raise typer.BadParameter("--row needs --db, the database of the outbox")
    found = outbox.find_row(row)
    if found is None:
        raise InvalidInput(
            f"row {row} is not known: it was rolled back, is not committed yet, or is not of the "
            "newest 10,000 batches; search its stream instead"
        )
    offset = None if isinstance(found, StagedRow) else found.offset_of(row)
    if offset is None:
        raise InvalidInput(
            f"row {row} is staged for {found.stream!r} and not in the log yet; "
            "see headwater outbox status"
        )
    return found.stream, offset


def _outbox_facts(outbox: Outbox[Any], stream: str, offset: int) -> OutboxFacts:
    from headwater.views.traces import OutboxFacts

    consumers = {
        one.consumer: (one.next_offset, one.idle_ms)
        for one in outbox.status().checkpoints
        if one.stream == stream
    }
    return OutboxFacts(outbox.batch_of(stream, offset), consumers)
