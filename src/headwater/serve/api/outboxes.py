"""The outbox and its SQL consumers over HTTP, on servers that were given a database."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headwater.doors.catalogue import CONSUMER
from headwater.errors import UnknownConsumer
from headwater.kernel.declaring import Scope
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.derived import fields_type, given_in, routes_of, served_database
from headwater.serve.api.routes import Route
from headwater.views.outboxes import (
    ConsumerLetterView,
    ConsumerView,
    OutboxView,
    consumer_places,
)
from headwater.views.record import View

_DEAD: Final = CONSUMER.operation("dead")


class ConsumersView(View, frozen=True, kw_only=True):
    """SQL consumers, each on every stream where it has a position."""

    consumers: list[ConsumerView]  # type: ignore[valid-type]  # mirror makes it at run time


class ConsumerLettersView(View, frozen=True, kw_only=True):
    """The oldest dead letters of a consumer, of all its streams."""

    consumer: str
    letters: list[ConsumerLetterView]


async def get_outbox(call: ApiCall) -> msgspec.Struct:
    """Show what is staged, since when, who streams it, its batches, and where consumers are."""
    return OutboxView.of(await served_database(call).status())


async def list_consumers(call: ApiCall) -> ConsumersView:
    """List the consumers that the token may read: the offset that each needs next, and its lag."""
    there = (await served_database(call).status()).checkpoints
    allowed = [one for one in there if call.grant.allows(Scope.READ, one.consumer)]
    return await _shown(call, allowed)


async def get_consumer(call: ApiCall) -> ConsumersView:
    """Show the position of a consumer on each of its streams."""
    there = (await served_database(call).status()).checkpoints
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
    _, named = _DEAD.arguments(given_in(call.query, _DEAD))
    letters = await served_database(call).letters_of(call.name, call.grant, **named)
    views = [ConsumerLetterView.of(letter) for letter in letters]
    return ConsumerLettersView(consumer=call.name, letters=views)


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
        query=fields_type(_DEAD),
        answer=ConsumerLettersView,
    ),
    *routes_of(CONSUMER, get_consumer),
)
