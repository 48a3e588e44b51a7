"""Consumers by name: as a decorator makes them, and as an operator reaches them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Unpack, overload

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from headwater.aio import AsyncHeadwater
from headwater.client import Headwater
from headwater.errors import InvalidInput, UnknownConsumer
from headwater.outbox.aio_consumer_loop import AsyncConsumer, AsyncHandler
from headwater.outbox.consumer_loop import Consumer, Handler
from headwater.outbox.plan import ConsumerOptions, Streams

if TYPE_CHECKING:
    from headwater.outbox.outbox import Outbox


# ── Decorator ─────────────────────────────────────────────────────────────────────────────────────
# The decorator that makes a consumer of its handler.


@overload
def consumer(
    name: str,
    *,
    stream: Streams,
    outbox: Outbox[Engine] | Engine,
    hw: Headwater,
    **options: Unpack[ConsumerOptions],
) -> Callable[[Handler], Consumer]: ...
@overload
def consumer(
    name: str,
    *,
    stream: Streams,
    outbox: Outbox[AsyncEngine] | AsyncEngine,
    hw: AsyncHeadwater,
    **options: Unpack[ConsumerOptions],
) -> Callable[[AsyncHandler], AsyncConsumer]: ...
def consumer(
    name: str,
    *,
    stream: Streams,
    outbox: Any,
    hw: Headwater | AsyncHeadwater,
    **options: Unpack[ConsumerOptions],
) -> Any:
    """Make a consumer of the function below; an AsyncConsumer when ``hw`` is an async client.

    @consumer("totals", stream="rides", outbox=outbox, hw=hw)
    def totals(conn, messages):
        ...

    totals.run()
    """

    def make(handler: Any) -> Consumer | AsyncConsumer:
        if isinstance(hw, AsyncHeadwater):
            return AsyncConsumer(name, stream, outbox, hw, handler, **options)
        return Consumer(name, stream, outbox, hw, handler, **options)

    return make


# ── Known consumers ───────────────────────────────────────────────────────────────────────────────
# Consumers as an operator reaches them: by name, on the streams where they have a position.


def _nothing_similar(_name: str, _names: Iterable[str]) -> str | None:
    return None


def known_consumer(
    outbox: Outbox[Engine],
    hw: Headwater,
    name: str,
    stream: str | None = None,
    similar: Callable[[str, Iterable[str]], str | None] = _nothing_similar,
) -> Consumer:
    """Return a consumer that has a position, on all its streams or on one; it cannot be run.

    ``similar`` finds what was most likely meant. Raises UnknownConsumer, and InvalidInput for a
    stream on which it has no position.
    """
    there = outbox.status().checkpoints
    held = [one.stream for one in there if one.consumer == name]
    if not held:
        raise UnknownConsumer(name, similar(name, {one.consumer for one in there}))
    if stream is not None and stream not in held:
        meant = similar(stream, held)
        raise InvalidInput(
            f"consumer {name!r} has no position on {stream!r}; "
            + (f"did you mean {meant!r}?" if meant else f"it has one on {', '.join(held)}")
        )
    return Consumer(name, [stream] if stream else held, outbox, hw, _handle_nothing)


def forget_consumer(consumer: Consumer, hw: Headwater) -> None:
    """Make retention wait no longer for a consumer until it runs again; its position stays."""
    for stream in consumer.streams:
        hw.stream(stream).forget_reader(f"consumer:{consumer.name}")


def _handle_nothing(_conn: Any, _messages: Any) -> None:
    """Stand for the handler of a consumer that is not run here."""
