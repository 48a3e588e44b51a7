"""``headwater consumer``: SQL consumers, where they are, and what an operator may do to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import options, output
from headwater.cli.derived import add_commands, answer
from headwater.cli.options import (
    AsJson,
    DatabaseUrl,
    Position,
    StoreUrl,
    connected,
    similar,
)
from headwater.doors.catalogue import CONSUMER

if TYPE_CHECKING:
    from headwater.outbox.consumer_letters import ConsumerLetter
    from headwater.outbox.known_consumers import KnownConsumer

app = typer.Typer()

ConsumerName = Annotated[
    str, typer.Argument(metavar="CONSUMER", help="Name of the consumer.", show_default=False)
]
OneStream = Annotated[
    str | None,
    typer.Option("--stream", metavar="STREAM", help="One of its streams only.", show_default=False),
]


@app.command("list")
def list_consumers(db: DatabaseUrl, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show every consumer of a database: the offset that it needs next, and its lag."""
    from headwater.outbox import Outbox
    from headwater.sql.engines import open_engine

    with open_engine(db) as engine:
        found = Outbox(engine).status().checkpoints
    with connected(store) as hw:
        rows = hw.store.run(views.outboxes.consumer_places(found))
    output.show_list(
        rows,
        lambda row: row.view,
        {
            "consumer": lambda row: row.checkpoint.consumer,
            "stream": lambda row: row.checkpoint.stream,
            "next": lambda row: row.checkpoint.next_offset,
            "lag": lambda row: row.lag,
            "behind": lambda row: output.age_text(row.lag_ms),
            "dead": lambda row: row.dead,
            "idle for": lambda row: output.age_text(row.checkpoint.idle_ms),
        },
        as_json,
        nothing="no consumers: a consumer is created by its first run",
    )


@app.command(context_settings=options.TAKES_STEPS)
def seek(
    name: ConsumerName,
    to: Position,
    db: DatabaseUrl,
    stream: OneStream = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Set where a consumer continues, on all of its streams or on one, which an offset needs.

    What it has committed is kept; running processes follow.
    """
    wanted = options.target(to)
    with _known(store, name, db=db) as consumer:
        sought: dict[str, int] = {}
        if isinstance(wanted, options.Steps):
            for place, here in consumer.positions(stream).items():
                sought |= consumer.seek(options.from_here(wanted, here or 1), stream=place)
        else:
            sought = consumer.seek(wanted, stream=stream)
    answer(CONSUMER.operation("seek"), [name], sought, as_json)


@app.command()
def redrive(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:APP",
            help="The application that declares the consumer, as for `headwater run`.",
            show_default=False,
        ),
    ],
    name: ConsumerName,
    db: Annotated[
        str | None,
        typer.Option(
            "--db",
            metavar="URL",
            envvar="HEADWATER_DB",
            help="The database, in place of that of the application.",
            show_default=False,
        ),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Handle the dead letters of a consumer again, by the handler of its application.

    In order, each with its effect exactly once, after messages that came later. One that fails
    again stays a dead letter. May run while the application runs.
    """
    from headwater.app.application import load_app, redrive_letters

    done = redrive_letters(load_app(target), name, store, db)
    view = views.outboxes.ConsumerRedrivenView.of(done, consumer=name)
    again = f"; {done.failed} failed again and stay dead letters" if done.failed else ""
    output.answer(view, f"handled {done.handled}{again}", as_json)


def _show_letters(_: object, letters: list[ConsumerLetter], as_json: bool) -> None:
    """Print dead letters of a consumer."""
    output.show_list(
        letters,
        views.outboxes.ConsumerLetterView.of,
        {
            "stream": lambda letter: letter.stream,
            "origin": lambda letter: letter.origin,
            "attempts": lambda letter: letter.attempts,
            "buried": lambda letter: output.time_text(letter.buried_ms),
            "tag": lambda letter: letter.tag,
            "value": lambda letter: letter.value,
            "cause": lambda letter: letter.cause and str(letter.cause),
        },
        as_json,
        fold=3,
        nothing="no dead letters",
    )


@contextmanager
def _known(store: str | None, name: str, *, db: str) -> Iterator[KnownConsumer]:
    """Yield a consumer that has a position; raises UnknownConsumer."""
    from headwater.outbox import Outbox
    from headwater.outbox.known_consumers import KnownConsumer
    from headwater.sql.engines import open_engine

    with open_engine(db) as engine, connected(store) as hw:
        yield KnownConsumer(Outbox(engine), hw, name, similar)


add_commands(app, CONSUMER, _known, dead=_show_letters)
