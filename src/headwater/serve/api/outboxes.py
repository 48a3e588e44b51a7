"""The outbox and its SQL consumers over HTTP, on servers that were given a database."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec

from headwater.errors import InvalidInput, UnknownConsumer
from headwater.kernel.declaring import Scope
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.databases import ServedDatabase
from headwater.serve.api.routes import Route
from headwater.serve.fields import Count, Offset, Start
from headwater.serve.http.messages import Refused
from headwater.views.outboxes import (
    ConsumerDiscardedView,
    ConsumerForgottenView,
    ConsumerLetterView,
    ConsumerRemovedView,
    ConsumerSoughtView,
    ConsumerView,
    OutboxView,
    consumer_places,
)
from headwater.views.record import View


class ConsumerLettersQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How many dead letters."""

    count: Count = 100


class ConsumersView(View, frozen=True, kw_only=True):
    """SQL consumers, each on every stream where it has a position."""

    consumers: list[ConsumerView]  # type: ignore[valid-type]  # mirror makes it at run time


class ConsumerSeeksView(View, frozen=True, kw_only=True):
    """Where a consumer continues, on each of its streams that were sought."""

    sought: list[ConsumerSoughtView]


class ConsumerLettersView(View, frozen=True, kw_only=True):
    """The oldest dead letters of a consumer, of all its streams."""

    consumer: str
    letters: list[ConsumerLetterView]


class ConsumerSeekBody(msgspec.Struct, forbid_unknown_fields=True):
    """Where a consumer continues; an offset is of one stream, which ``stream`` names if needed."""

    to: Start
    stream: str | None = None


class ConsumerStreamBody(msgspec.Struct, forbid_unknown_fields=True):
    """One stream of a consumer, or all of them."""

    stream: str | None = None


class ConsumerDiscardBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters: of one stream or of all, up to an offset among those of one stream."""

    stream: str | None = None
    up_to: Offset | None = None


def _database(call: ApiCall) -> ServedDatabase:
    if call.served.database is None:
        raise Refused(404, "this server was given no database; start it with --db URL")
    return call.served.database


async def get_outbox(call: ApiCall) -> msgspec.Struct:
    """Show what is staged, since when, who streams it, its batches, and where consumers are."""
    return OutboxView.of(await _database(call).status())


async def list_consumers(call: ApiCall) -> ConsumersView:
    """List the consumers that the token may read: the offset that each needs next, and its lag."""
    there = (await _database(call).status()).checkpoints
    allowed = [one for one in there if call.grant.allows(Scope.READ, one.consumer)]
    return await _shown(call, allowed)


async def get_consumer(call: ApiCall) -> ConsumersView:
    """Show the position of a consumer on each of its streams."""
    there = (await _database(call).status()).checkpoints
    own = [one for one in there if one.consumer == call.name]
    if not own:
        raise UnknownConsumer(call.name)
    return await _shown(call, own)


async def _shown(call: ApiCall, checkpoints: list[Any]) -> ConsumersView:
    found = await call.hw.store.run(consumer_places(checkpoints))
    return ConsumersView(consumers=[one.view for one in found])


async def get_consumer_letters(call: ApiCall) -> ConsumerLettersView:
    """Show the oldest dead letters of a consumer: the messages that it gave up.

    Letters of a stream that the token may not read are left out. The list ends early once they have
    4 MiB; the stream of each letter, `STREAM.CONSUMER.sql-dead`, has all of them.
    """
    letters = await _database(call).letters_of(call.name, call.query.count, call.grant)
    views = [ConsumerLetterView.of(letter) for letter in letters]
    return ConsumerLettersView(consumer=call.name, letters=views)


async def seek_consumer(call: ApiCall) -> ConsumerSeeksView:
    """Set where a consumer continues, on each of its streams or on one.

    What it has committed stays; a process that runs it follows.
    """
    sought = await _database(call).change_consumer(
        call.name, call.body.stream, partial(_seek, call.body.to)
    )
    return ConsumerSeeksView(
        sought=[
            ConsumerSoughtView(consumer=call.name, stream=stream, next=offset)
            for stream, offset in sought.items()
        ]
    )


def _seek(to: int | str, consumer: Any, _: Any) -> dict[str, int]:
    if isinstance(to, int) and len(consumer.streams) > 1:
        raise InvalidInput(
            f"an offset belongs to one stream; name it with stream: {', '.join(consumer.streams)}"
        )
    return {stream: consumer.seek(to, stream=stream) for stream in consumer.streams}


async def discard_consumer_letters(call: ApiCall) -> ConsumerDiscardedView:
    """Drop dead letters of a consumer for good, with what the database notes of them."""
    body = call.body
    discarded = await _database(call).change_consumer(
        call.name, body.stream, lambda consumer, _: consumer.discard(body.up_to)
    )
    return ConsumerDiscardedView(consumer=call.name, discarded=discarded)


async def forget_sql_consumer(call: ApiCall) -> ConsumerForgottenView:
    """Stop retention from waiting for a consumer until it runs again; its position is kept."""
    streams = await _database(call).change_consumer(call.name, call.body.stream, _forget)
    return ConsumerForgottenView(consumer=call.name, streams=streams)


def _forget(consumer: Any, hw: Any) -> list[str]:
    from headwater.outbox.consumers import forget_consumer

    forget_consumer(consumer, hw)
    return list(consumer.streams)


async def remove_consumer(call: ApiCall) -> ConsumerRemovedView:
    """Remove the position of a consumer: retention no longer waits, and it starts again."""
    streams = await _database(call).change_consumer(call.name, call.query.stream, _remove)
    return ConsumerRemovedView(consumer=call.name, streams=streams)


def _remove(consumer: Any, _: Any) -> list[str]:
    consumer.remove()
    return list(consumer.streams)


_ONE: Final = "/v1/consumers/{consumer}"
OUTBOX_ROUTES: Final = (
    Route("GET", "/v1/outbox", get_outbox, Scope.READ, answer=OutboxView, whole_store=True),
    Route("GET", "/v1/consumers", list_consumers, Scope.READ, answer=ConsumersView),
    Route("GET", _ONE, get_consumer, Scope.READ, answer=ConsumersView),
    Route(
        "GET",
        f"{_ONE}/dead",
        get_consumer_letters,
        Scope.READ,
        query=ConsumerLettersQuery,
        answer=ConsumerLettersView,
    ),
    Route(
        "POST",
        f"{_ONE}/seek",
        seek_consumer,
        Scope.ADMIN,
        body=ConsumerSeekBody,
        answer=ConsumerSeeksView,
        look=get_consumer,
    ),
    Route(
        "POST",
        f"{_ONE}/discard",
        discard_consumer_letters,
        Scope.ADMIN,
        body=ConsumerDiscardBody,
        answer=ConsumerDiscardedView,
        look=get_consumer,
    ),
    Route(
        "POST",
        f"{_ONE}/forget",
        forget_sql_consumer,
        Scope.ADMIN,
        body=ConsumerStreamBody,
        answer=ConsumerForgottenView,
        look=get_consumer,
    ),
    Route(
        "DELETE",
        _ONE,
        remove_consumer,
        Scope.ADMIN,
        query=ConsumerStreamBody,
        answer=ConsumerRemovedView,
        look=get_consumer,
    ),
)
