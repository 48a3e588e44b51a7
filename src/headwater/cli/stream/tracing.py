"""``headwater stream trace``: the life of a message, from the row of its outbox to its archive."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli import completing, output
from headwater.cli.options import AsJson, StoreUrl, connected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.outbox.outbox import Outbox
    from headwater.views.traces import OutboxFacts


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

    with _opened(db) as outbox:
        if row is not None:
            name, offset = _place(outbox, row)
        if name is None or offset is None:
            raise typer.BadParameter("give a stream and an offset, or --row with --db")
        with connected(store) as hw:
            facts = hw.store.run(look_at_life(name, offset))
            if offset > facts.info.last:
                raise InvalidInput(
                    f"offset {offset} of {name!r} is not written yet; the last is {facts.info.last}"
                )
            message = hw.stream(name).read(offset, 1)[0]
        known = None if outbox is None else _known(outbox, name, offset)
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
def _opened(db: str | None) -> Iterator[Outbox[Any] | None]:
    if db is None:
        yield None
        return
    from headwater.kernel.packaging import extra_needed

    with extra_needed("sql"):
        from headwater.outbox.outbox import Outbox
        from headwater.sql.engines import open_engine
    with open_engine(db) as engine:
        yield Outbox(engine)


def _place(outbox: Outbox[Any] | None, row: int) -> tuple[str, int]:
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


def _known(outbox: Outbox[Any], stream: str, offset: int) -> OutboxFacts:
    from headwater.views.traces import OutboxFacts

    consumers = {
        one.consumer: (one.next_offset, one.idle_ms)
        for one in outbox.status().checkpoints
        if one.stream == stream
    }
    return OutboxFacts(outbox.batch_of(stream, offset), consumers)
