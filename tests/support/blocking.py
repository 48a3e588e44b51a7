"""The async client with the manners of the sync one, so that one test body proves both.

Coroutines run on one event loop in a thread of its own. Several threads may call at once; their
coroutines then run side by side on that loop, as they would in an application.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any, cast

import headwater
from headwater import aio
from headwater.store.aio_store import AsyncStore

_WRAPPED = (
    aio.AsyncHeadwater,
    aio.AsyncStream,
    aio.AsyncGroup,
    aio.AsyncTopic,
    aio.AsyncTopicGroup,
    aio.AsyncIck,
    aio.AsyncIckChannel,
    aio.AsyncQueue,
    AsyncStore,
)


class Loop:
    """An event loop in a background thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def wait(self, awaitable: Awaitable[Any]) -> Any:
        """Run an awaitable on the loop and block until it is done."""

        async def wrapper() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(wrapper(), self._loop).result()

    def close(self) -> None:
        """Stop the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Blocking:
    """Any object of the async client; methods block, and give blocking objects."""

    def __init__(self, loop: Loop, target: Any) -> None:
        self._loop = loop
        self._target = target

    def __repr__(self) -> str:
        return f"Blocking({self._target!r})"

    def __getattr__(self, name: str) -> Any:
        return self._turn(getattr(self._target, name))

    def _turn(self, found: Any) -> Any:
        if inspect.ismethod(found):
            return lambda *args, **words: self._turn(found(*args, **words))
        if inspect.isawaitable(found):
            return self._turn(self._loop.wait(found))
        if inspect.isasyncgen(found):
            return self._iterate(found)
        return Blocking(self._loop, found) if isinstance(found, _WRAPPED) else found

    def _iterate(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        while True:
            try:
                yield self._loop.wait(anext(items))
            except StopAsyncIteration:
                return


def connect(loop: Loop, url: str | None, **words: Any) -> headwater.Headwater:
    """Connect the async client; to the type checker and to tests it is the sync one."""
    return cast("headwater.Headwater", Blocking(loop, loop.wait(aio.connect(url, **words))))
