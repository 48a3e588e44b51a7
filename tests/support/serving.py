"""A server in a thread of this process, whatever protocol it speaks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import uvloop

from headwater.serve.listening import ListenAddress, Serve, ServerProcess


class ServerThread:
    """A server on a port of its own."""

    def __init__(self, serve: Serve) -> None:
        self._connected: list[socket.socket] = []
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        bound = ListenAddress("127.0.0.1", 0).bind()
        self.port: int = bound.getsockname()[1]
        self._stop = asyncio.Event()
        listening = threading.Event()
        process = ServerProcess(0, bound, self._stop, listening.set)
        self._serving = asyncio.run_coroutine_threadsafe(serve(process), self._loop)
        assert listening.wait(60), self._serving.result(0)

    def connect(self) -> socket.socket:
        """Return a connection to the server, which is closed with it at the latest."""
        raw = socket.create_connection(("127.0.0.1", self.port))
        raw.settimeout(20)
        self._connected.append(raw)
        return raw

    def call(self, work: Callable[[], object]) -> None:
        """Call something in the thread of the server."""
        self._loop.call_soon_threadsafe(work)

    @contextlib.contextmanager
    def stands_still(self) -> Iterator[None]:
        """Keep the server from doing anything, so that what is sent meanwhile arrives at once."""
        still, go_on = threading.Event(), threading.Event()

        def stand() -> None:
            still.set()
            go_on.wait(60)

        self.call(stand)
        assert still.wait(60)
        yield
        go_on.set()

    def stop(self) -> None:
        """Tell the server to stop, as SIGTERM does."""
        self._loop.call_soon_threadsafe(self._stop.set)

    def stopped(self) -> None:
        """Wait until the server has stopped."""
        self._serving.result(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self.stopped()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for raw in self._connected:
            raw.close()
