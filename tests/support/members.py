"""Consumers and workers as processes of their own: see zygote.py.

An order names the store, the manner and the stream. A consumer's also names it, its database, and
where it is to die: at a step, or "in the handler", between two effects; with an "act" other than
"run" it does that to its dead letters, and ends. A worker's names the page on which it notes what
it has handled; that of a worker which fails names the place where it dies.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

import headwater
from headwater import Group, Message, TopicMessage, aio
from headwater.kernel.failures import START_MS
from headwater.log import dead_letters
from headwater.outbox import AsyncConsumer, AsyncWorker, Consumer, Worker
from tests.support.consumers import EFFECTS, writes
from tests.support.zygote import dying, serve


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
    with headwater.connect(order["store"], wait_ms=START_MS) as hw:
        consumer = Consumer(
            *(order["name"], source_of(hw, order), engine, hw, doing.handle),
            on_reset=doing.reset,
            steps=doing.steps,
            **options_of(order),
        )
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        getattr(consumer, order.get("act", "run"))()


async def consume_async(order: dict[str, Any]) -> None:
    doing = Doing(order)

    async def handle(conn: AsyncConnection, messages: list[Message]) -> None:
        await conn.run_sync(doing.handle, messages)

    async def reset(conn: AsyncConnection, state: Any) -> None:
        await conn.run_sync(doing.reset, state)

    engine = create_async_engine(order["db"].replace("sqlite:", "sqlite+aiosqlite:"))
    async with aio.connect(order["store"], wait_ms=START_MS) as hw:
        consumer = AsyncConsumer(
            *(order["name"], source_of(hw, order), engine, hw, handle),
            on_reset=reset,
            steps=doing.steps,
            **options_of(order),
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        await getattr(consumer, order.get("act", "run"))()
    await engine.dispose()


def source_of(hw: Any, order: dict[str, Any]) -> Any:
    """Return the stream that an order names, or the topic when it says how many partitions."""
    partitions = order.get("partitions")
    return hw.topic(order["stream"], partitions) if partitions else order["stream"]


class OrderPage:
    """A file on which every process notes what it begins and what it has done; some fail at first.

    A worker that dies in its handler has begun a message and not done it.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self._file = os.open(order["page"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, message: Message) -> None:
        os.write(self._file, b"begin %s %d\n" % (message.tag.encode(), message.offset))
        if message.attempt == 1 and message.offset % 7 == 0:
            raise ValueError("not yet")
        os.write(self._file, b"done %s %d\n" % (message.tag.encode(), message.offset))


def work_in_order(order: dict[str, Any]) -> None:
    page = OrderPage(order)
    with headwater.connect(order["store"], wait_ms=START_MS) as hw:
        group = hw.stream(order["stream"]).group("g")
        worker = Worker(group, page.note, ack_ms=400, backoff_ms=20, ordered=True)
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        worker.run()


async def work_in_order_async(order: dict[str, Any]) -> None:
    page = OrderPage(order)

    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        page.note(message)

    async with aio.connect(order["store"], wait_ms=START_MS) as hw:
        group = hw.stream(order["stream"]).group("g")
        worker = AsyncWorker(group, handle, ack_ms=400, backoff_ms=20, ordered=True)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        await worker.run()


class Page:
    """A file on which every process notes the offsets it has handled."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._file = os.open(order["page"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, message: Message | TopicMessage) -> None:
        place = b"%d " % message.partition if isinstance(message, TopicMessage) else b""
        os.write(self._file, place + b"%d\n" % message.offset)


def work(order: dict[str, Any]) -> None:
    page = Page(order)
    with headwater.connect(order["store"], wait_ms=START_MS) as hw:
        if "topic" in order:
            worker = Worker(hw.topic(order["topic"]).group("g"), page.note, ack_ms=500)
        else:
            worker = Worker(hw.stream(order["stream"]).group("g"), page.note, ack_ms=500)
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        worker.run()


async def work_async(order: dict[str, Any]) -> None:
    page = Page(order)

    async def handle(message: Message) -> None:
        page.note(message)

    async with aio.connect(order["store"], wait_ms=START_MS) as hw:
        worker = AsyncWorker(hw.stream(order["stream"]).group("g"), handle, ack_ms=500)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        await worker.run()


def fail(order: dict[str, Any]) -> None:
    """Work with a handler that fails, and die before that is reported, or before the burial."""
    report: Any = Group.fail

    def die(*_: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def refuse(message: Message) -> None:
        if message.tag == "bad":
            raise LookupError("never")

    def fail_or_die(group: Group, *failures: Any) -> Any:
        return die() if failures[0].delay_ms is None else report(group, *failures)

    places: dict[str, tuple[Any, str, Any]] = {
        "before the report": (Group, "fail", fail_or_die),
        "before the burial": (dead_letters, "bury_given_up", die),
    }
    setattr(*places[order["place"]])
    with headwater.connect(order["store"], wait_ms=START_MS) as hw:
        group = hw.stream(order["stream"]).group("g", dead_letters=True)
        Worker(group, refuse, max_attempts=2, backoff_ms=1, ack_ms=1500).run()


def run(order: dict[str, Any]) -> None:
    if order.get("role") == "failing worker":
        fail(order)
        return
    if order.get("role") == "worker in order":
        if order["manner"] == "async":
            asyncio.run(work_in_order_async(order))
        else:
            work_in_order(order)
        return
    worker = order.get("role") == "worker"
    if order["manner"] == "async":
        asyncio.run(work_async(order) if worker else consume_async(order))
    elif worker:
        work(order)
    else:
        consume(order)


if __name__ == "__main__":
    serve(run)
