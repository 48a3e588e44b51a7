"""Consumers as processes of their own: see zygote.py.

An order names the database, the store, the manner, the consumer and its stream, and where it is to
die: at a step, or "in the handler", between two effects.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

import headwater
from headwater import Message, aio
from headwater.outbox import AsyncConsumer, Consumer
from tests.consumers import EFFECTS, writes
from tests.fault.zygote import dying, serve


class Doing:
    """What a consumer does: leaves effects, fails on guilty offsets, dies where it is to die."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._name = order["name"]
        self._guilty = set(order.get("guilty", ()))
        self.steps = dying(order)

    def handle(self, conn: sa.Connection, messages: list[Message]) -> None:
        half = len(messages) // 2
        for part in (messages[:half], messages[half:]):
            if part:
                writes(self._name)(conn, part)
            self.steps("in the handler")
        if self._guilty & {message.offset for message in messages}:
            raise ValueError("cannot be handled")

    def reset(self, conn: sa.Connection, _: Any) -> None:
        conn.execute(sa.delete(EFFECTS).where(EFFECTS.c.consumer == self._name))


def options_of(order: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {
        name: order[name] for name in ("batch", "on_error", "attempts") if name in order
    }
    return {"backoff_ms": 0, **given}


def consume(order: dict[str, Any]) -> None:
    doing = Doing(order)
    engine = sa.create_engine(order["db"])
    with headwater.connect(order["store"]) as hw:
        consumer = Consumer(
            *(order["name"], order["stream"], engine, hw, doing.handle),
            on_reset=doing.reset,
            steps=doing.steps,
            **options_of(order),
        )
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        consumer.run()


async def consume_async(order: dict[str, Any]) -> None:
    doing = Doing(order)

    async def handle(conn: AsyncConnection, messages: list[Message]) -> None:
        await conn.run_sync(doing.handle, messages)

    async def reset(conn: AsyncConnection, state: Any) -> None:
        await conn.run_sync(doing.reset, state)

    engine = create_async_engine(order["db"].replace("sqlite:", "sqlite+aiosqlite:"))
    async with aio.connect(order["store"]) as hw:
        consumer = AsyncConsumer(
            *(order["name"], order["stream"], engine, hw, handle),
            on_reset=reset,
            steps=doing.steps,
            **options_of(order),
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        await consumer.run()
    await engine.dispose()


def run(order: dict[str, Any]) -> None:
    if order["manner"] == "async":
        asyncio.run(consume_async(order))
    else:
        consume(order)


if __name__ == "__main__":
    serve(run)
