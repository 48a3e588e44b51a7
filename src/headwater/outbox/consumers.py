"""The decorator that makes a consumer of its handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack, overload

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from headwater.aio import AsyncHeadwater
from headwater.client import Headwater
from headwater.outbox.aio_consumer_loop import AsyncConsumer, AsyncHandler
from headwater.outbox.consumer_loop import Consumer, Handler
from headwater.outbox.plan import ConsumerOptions, Streams

if TYPE_CHECKING:
    from headwater.outbox.outbox import Outbox


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
