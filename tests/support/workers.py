"""Workers of groups and of queues, sync and async, behind the manners of the sync ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import headwater
from headwater import (
    Delivery,
    Group,
    Message,
    Queue,
    QueueWorker,
    Stream,
    Topic,
    TopicGroup,
    TopicMessage,
    Worker,
    aio,
)
from headwater.aio import AsyncWorker
from headwater.errors import UnknownGroup
from tests.support.blocking import Blocking, Loop
from tests.support.consumers import Running


class Crew:
    """Makes workers of one manner; the handlers of async ones run in threads all the same."""

    def __init__(self, manner: str, url: str, loop: Loop) -> None:
        self._end = ExitStack()
        self.manner = manner
        self.hw = self._end.enter_context(headwater.connect(url))
        self._loop = loop
        self._async_hw: aio.AsyncHeadwater = loop.wait(aio.connect(url))
        self._end.callback(lambda: loop.wait(self._async_hw.close()))
        self._threads = self._end.enter_context(ThreadPoolExecutor(32))

    def worker(
        self, stream: Stream, handler: Callable[[Message], Any], group: str = "g", **options: Any
    ) -> Worker:
        """Make a worker of a group; ``dead_letters`` goes to the group, ``codec`` to the stream."""
        letters = {"dead_letters": options.pop("dead_letters", None)}
        codec = {"codec": options.pop("codec", None)}
        if self.manner == "sync":
            members: Any = self.hw.stream(stream.name, **codec).group(group, **letters)
            return Worker(members, handler, **options)
        members = self._async_hw.stream(stream.name, **codec).group(group, **letters)
        made = AsyncWorker(members, self._awaited(handler), **options)
        return cast("Worker", Blocking(self._loop, made))

    def topic_worker(
        self, topic: Topic, handler: Callable[[TopicMessage], Any], **options: Any
    ) -> Worker:
        """Make a worker of a group over a topic; the options are as those of ``worker``."""
        letters = {"dead_letters": options.pop("dead_letters", None)}
        codec = {"codec": options.pop("codec", None)}
        if self.manner == "sync":
            members: Any = self.hw.topic(topic.name, **codec).group("g", **letters)
            made: Worker = members.worker(**options)(handler)
            return made
        members = self._async_hw.topic(topic.name, **codec).group("g", **letters)
        awaited = members.worker(**options)(self._awaited(handler))
        return cast("Worker", Blocking(self._loop, awaited))

    def queue_worker(
        self, queue: Queue, handler: Callable[[Delivery], Any], **options: Any
    ) -> QueueWorker:
        """Make a worker of a queue, which has the ``codec``."""
        codec = {"codec": options.pop("codec", None)}
        if self.manner == "sync":
            return self.hw.queue(queue.name, **codec).worker(**options)(handler)
        members = self._async_hw.queue(queue.name, **codec)
        made = members.worker(**options)(self._awaited(handler))
        return cast("QueueWorker", Blocking(self._loop, made))

    def _awaited(self, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        async def awaited(item: Any) -> None:
            await asyncio.get_running_loop().run_in_executor(self._threads, handler, item)

        return awaited

    def close(self) -> None:
        self._end.close()


@contextmanager
def at_work(*workers: Worker | QueueWorker) -> Iterator[list[Running]]:
    """Let workers run; at the end they stop, and what one of them raised is raised."""
    runs = [Running(worker.run) for worker in workers]
    try:
        yield runs
    finally:
        for worker in workers:
            worker.stop()
    for run in runs:
        run.result()


def all_done(group: Group, count: int) -> Callable[[], bool]:
    """Return the question whether a group has acknowledged so many messages."""

    def done() -> bool:
        try:
            return group.info().ack_offset == count + 1
        except UnknownGroup:
            return False

    return done


def done_in(group: TopicGroup) -> int:
    """Return how many messages are done, in all partitions."""
    try:
        return sum(info.ack_offset - 1 for info in group.info())
    except UnknownGroup:
        return 0


class Gate:
    """A handler that waits to be let through; ``begun`` is what it was given."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self._open = threading.Event()

    def __call__(self, item: Any) -> None:
        self.begun.append(item)
        assert self._open.wait(60)

    def open(self) -> None:
        """Let all through."""
        self._open.set()


class Refusing:
    """A handler that fails on some tags or values; ``tried`` has what it was given."""

    def __init__(self, bad: set[Any]) -> None:
        self.tried: list[tuple[Any, int]] = []
        self._bad = bad

    def tries_of(self, what: Any) -> list[int]:
        return [attempt for each, attempt in self.tried if each == what]

    def __call__(self, item: Any) -> None:
        what = item.tag if isinstance(item, Message) else item.value
        self.tried.append((what, item.attempt))
        if what in self._bad:
            raise LookupError(f"no {what!r} here")
