"""``headwater consumer``: SQL consumers, where they are, and what an operator may do to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import options, output
from headwater.cli.options import (
    AsJson,
    Count,
    DatabaseUrl,
    Position,
    StoreUrl,
    Yes,
    confirm,
    connected,
    similar,
)
from headwater.kernel.inputs import MAX_EXACT

if TYPE_CHECKING:
    from headwater.client import Headwater
    from headwater.outbox import Consumer

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
    with _known_consumer(db, store, name, stream) as (consumer, _):
        if isinstance(wanted, int) and len(consumer.streams) > 1:
            raise typer.BadParameter(
                "an offset belongs to one stream; name it with --stream: "
                f"{', '.join(consumer.streams)}"
            )
        sought = {
            place: consumer.seek(options.from_here(wanted, here or 1), stream=place)
            for place, here in consumer.positions().items()
        }
    for place, offset in sought.items():
        assert isinstance(offset, int), "of a stream, as no topic was named"
        done = views.outboxes.ConsumerSoughtView(consumer=name, stream=place, next=offset)
        output.answer(done, f"{name} continues at {offset} of {place}", as_json)


@app.command()
def dead(
    name: ConsumerName,
    db: DatabaseUrl,
    stream: OneStream = None,
    count: Count = 100,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the oldest dead letters of a consumer: the messages that it gave up."""
    with _known_consumer(db, store, name, stream) as (consumer, _):
        letters = consumer.dead(count)
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


@app.command()
def discard(
    name: ConsumerName,
    db: DatabaseUrl,
    stream: OneStream = None,
    up_to: Annotated[
        int | None,
        typer.Option(
            "--up-to",
            metavar="OFFSET",
            min=1,
            max=MAX_EXACT,
            help="Only letters up to this offset of STREAM.CONSUMER.sql-dead.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Drop dead letters of a consumer for good, with what the database notes of them."""
    with _known_consumer(db, store, name, stream) as (consumer, _):
        if up_to is not None and len(consumer.streams) > 1:
            raise options.refused(
                "it is an offset of one stream; name it with --stream: "
                f"{', '.join(consumer.streams)}",
                "--up-to",
            )
        some = "" if up_to is None else f" up to {up_to}"
        confirm(f"Discard all dead letters of {name}{some}, for good?", yes)
        done = consumer.discard(up_to)
    view = views.outboxes.ConsumerDiscardedView(consumer=name, discarded=done)
    output.answer(view, f"discarded {done}", as_json)


@app.command()
def remove(
    name: ConsumerName,
    db: DatabaseUrl,
    stream: OneStream = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Remove the position of a consumer: retention no longer waits for it, and it starts again."""
    with _known_consumer(db, store, name, stream) as (consumer, _):
        consumer.remove()
        streams = list(consumer.streams)
    done = views.outboxes.ConsumerRemovedView(consumer=name, streams=streams)
    output.answer(done, f"removed {name} of {', '.join(streams)}", as_json)


@app.command()
def forget(
    name: ConsumerName,
    db: DatabaseUrl,
    stream: OneStream = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Stop retention from waiting for a consumer until it runs again; its position is kept."""
    from headwater.outbox.consumers import forget_consumer

    with _known_consumer(db, store, name, stream) as (consumer, hw):
        streams = list(consumer.streams)
        forget_consumer(consumer, hw)
    done = views.outboxes.ConsumerForgottenView(consumer=name, streams=streams)
    output.answer(done, f"forgot {name} on {', '.join(streams)}", as_json)


@contextmanager
def _known_consumer(
    db: str, store: str | None, name: str, stream: str | None
) -> Iterator[tuple[Consumer, Headwater]]:
    """Yield a consumer of the streams on which it has a position; raises UnknownConsumer."""
    from headwater.outbox import Outbox
    from headwater.outbox.consumers import known_consumer
    from headwater.sql.engines import open_engine

    with open_engine(db) as engine, connected(store) as hw:
        yield known_consumer(Outbox(engine), hw, name, stream, similar), hw
