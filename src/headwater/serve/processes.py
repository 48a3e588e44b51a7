"""The processes of a server: one, or several that share a port and are watched by their parent.

The processes do not talk to each other; the kernel spreads connections over them. One that dies is
started again. When the parent dies, by whatever means, all of them end.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from headwater.kernel.inputs import check_int
from headwater.kernel.stopping import STOP_SIGNALS, stop_on_signals
from headwater.serve.allocation import keep_freed_memory
from headwater.serve.listening import bound_address

log = logging.getLogger("headwater.serve")

MAX_PROCESSES: Final = 64
# A process that cannot live is not started over and over without a pause.
_PAUSE_S: Final = 0.5


class ServerProcess(NamedTuple):
    """What a process of a server is given.

    ``number`` counts from 0 and passes to the process that takes the place of one that died. It
    calls ``ready`` once it listens, and ends when ``stop`` is set. ``also`` are the sockets of a
    server that listens in several places.
    """

    number: int
    bound: socket.socket
    stop: asyncio.Event
    ready: Callable[[], None]
    also: tuple[socket.socket, ...] = ()


Serve: TypeAlias = Callable[[ServerProcess], Coroutine[Any, Any, None]]
_Sockets: TypeAlias = "tuple[socket.socket, ...]"


def check_processes(count: int) -> int:
    """Return a number of processes that a server may have; raises InvalidInput for another."""
    return check_int(count, "workers", 1, MAX_PROCESSES)


def run_processes(
    count: int,
    bound: socket.socket,
    serve: Serve,
    ready: Callable[[], None],
    also: Sequence[socket.socket] = (),
) -> None:
    """Run ``serve`` in this many processes until SIGTERM or SIGINT; with one, in this process.

    ``ready`` is called once all of them listen, where ``bound`` is bound to and ``also`` are.
    """
    new_loop = loop_factory()
    if new_loop is None:
        log.warning("uvloop is not installed: the server works, with more time for each request")
    # What is here now stays: the garbage collector takes milliseconds to look through it again.
    gc.freeze()
    keep_freed_memory()

    def live(number: int, own: _Sockets, parent: int | None, tell: Callable[[], None]) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_serve_until_stopped(serve, number, own, parent, tell))

    sockets = (bound, *also)
    if count == 1:
        live(0, sockets, None, ready)
    else:
        _Parent(sockets, count, live).run(ready)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes an event loop: uvloop's where it is installed, else None."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve_until_stopped(
    serve: Serve,
    number: int,
    sockets: _Sockets,
    parent: int | None,
    ready: Callable[[], None],
) -> None:
    stop = asyncio.Event()
    if parent is not None:
        # Becomes readable when the parent is gone.
        asyncio.get_running_loop().add_reader(parent, stop.set)
    with stop_on_signals(stop.set):
        await serve(ServerProcess(number, sockets[0], stop, ready, sockets[1:]))


class _Parent:
    """Starts processes and keeps their number."""

    def __init__(
        self,
        sockets: _Sockets,
        count: int,
        live: Callable[[int, _Sockets, int | None, Callable[[], None]], None],
    ) -> None:
        # Bound and never listening: they hold their ports, and receive no connections.
        self._sockets = sockets
        self._count = count
        self._live = live
        self._numbers: dict[int, int] = {}
        self._stopping = False
        # Only this process holds the end for writing; a child that reads sees when it is gone.
        self._alive, self._hold = os.pipe()

    def run(self, ready: Callable[[], None]) -> None:
        """Keep the processes running until a signal comes, then let them end."""
        with stop_on_signals(self._stop):
            for number in range(self._count):
                self._start(number)
            ready()
            while self._numbers:
                try:
                    child, _ = os.wait()
                except ChildProcessError:
                    break
                number = self._numbers.pop(child)
                if not self._stopping:
                    time.sleep(_PAUSE_S)
                if not self._stopping:
                    self._start(number)

    def _stop(self) -> None:
        self._stopping = True
        for child in self._numbers:
            os.kill(child, signal.SIGTERM)

    def _start(self, number: int) -> None:
        listens, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(listens)
            self._be_child(number, tell)
        os.close(tell)
        self._numbers[child] = number
        # Until it listens, or has died.
        os.read(listens, 1)
        os.close(listens)
        if self._stopping:
            os.kill(child, signal.SIGTERM)

    def _be_child(self, number: int, tell: int) -> NoReturn:
        """Serve, and end with the parent."""

        def ready() -> None:
            os.write(tell, b".")
            os.close(tell)

        code = 1
        try:
            for stop_signal in STOP_SIGNALS:
                signal.signal(stop_signal, signal.SIG_DFL)
            os.close(self._hold)
            own = tuple(bound_address(one).bind_again() for one in self._sockets)
            for one in self._sockets:
                one.close()
            self._live(number, own, self._alive, ready)
            code = 0
        except Exception:  # nobody else would tell of it
            log.exception("process %d of the server has failed, and is started again", number)
        finally:
            os._exit(code)
