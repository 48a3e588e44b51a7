"""Async clients for tests, which connect with their first call, in whatever loop that runs.

So a fixture can make one before any loop runs, whichever plugin runs the tests. A client closes its
connections when its loop ends in order, as loops of asyncio.run and of the plugins do, and
connects again in another loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from headwater.store.aio_store import AsyncStore, connections_to
from headwater.store.call import Request
from headwater.store.directory import default_directory
from headwater.store.faults import RequestObservation
from headwater.store.steps import random_token
from headwater.store.url import resolve


class LateAsyncStore(AsyncStore):
    """An async store that connects with its first call."""

    def __init__(self, url: str) -> None:
        self._address = resolve(url, default_directory())
        super().__init__(
            self._address,
            None,
            connections_to(self._address, None),
            time.monotonic,
            random_token,
            sleep=asyncio.sleep,
            apart=asyncio.to_thread,
            check_rights=True,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._meeting: asyncio.Task[None] | None = None
        self._ending: AsyncIterator[None] | None = None

    async def ask(
        self,
        request: Request,
        patience_s: float | None = None,
        observation: RequestObservation | None = None,
    ) -> Any:
        """Do one request, after the first contact with the store in this loop."""
        await self._ensure_connected()
        return await super().ask(request, patience_s, observation)

    async def command(self, *words: Any) -> list[Any]:
        """Run an administrative command, after the first contact with the store in this loop."""
        await self._ensure_connected()
        return await super().command(*words)

    def end(self) -> None:
        """Close the connections from outside of the loop, if that is still open and at rest."""
        loop = self._loop
        if loop is not None and not loop.is_closed() and not loop.is_running():
            loop.run_until_complete(self.close())

    async def _ensure_connected(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self.connections = connections_to(self._address, None)
            self._meeting = loop.create_task(self._connect())
        if self._meeting is not None:
            await asyncio.shield(self._meeting)

    async def _connect(self) -> None:
        # A loop that ends closes the generators that were begun in it.
        self._ending = self._end_with_loop()
        await anext(self._ending)
        self.version = await self._do(self._first_contact(None))
        self._meeting = None

    async def _end_with_loop(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self.close()
