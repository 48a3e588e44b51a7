"""What runs an AsyncFarm for programs without an event loop: a loop on a thread of its own.

Farm has no calls of its own, as clusters are called by tasks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from headwater.errors import StoreError
from headwater.timeline.farm.aio_farm import AsyncFarm
from headwater.timeline.farm.opening import OpenedFarm
from headwater.timeline.farm.options import FarmOptions

T = TypeVar("T")


class ThreadedFarm(OpenedFarm):
    """A farm whose verbs run on its thread."""

    def __init__(self, farm: str, options: FarmOptions) -> None:
        self._farm = AsyncFarm(farm, options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="headwater-farm", daemon=True
        )
        self._thread.start()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise StoreError("the farm is closed; open it again")
        task = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return task.result()
        except BaseException:
            task.cancel()
            raise

    def close(self) -> None:
        """Wait for writes in progress, drop queued repairs, and close all connections."""
        if not self._loop.is_closed():
            self._run(self._farm.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
