"""Runs the server: one process that serves, or several that share a port, watched by their parent.

The processes of one server do not talk to each other; the kernel spreads connections over them.
One that dies is started anew; when the parent dies, by whatever means, all end.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Final, NoReturn, TypeAlias

from headwater.errors import InvalidInput
from headwater.inputs import check_int
from headwater.timeline.farm.aio_farm import AsyncFarm
from headwater.timeline.metrics import Metrics
from headwater.timeline.server.connection import Connections
from headwater.timeline.server.prometheus import Figures, shared
from headwater.timeline.server.service import Service, Tokens

log = logging.getLogger("headwater.timeline")

Ready: TypeAlias = Callable[[], None]

MAX_WORKERS: Final = 64
_BACKLOG: Final = 2048
_DRAIN_S: Final = 5.0
# A process that cannot live is not started over and over without a pause.
_PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Listening:
    """Where and how a server listens; ``port`` 0 takes any that is free."""

    host: str
    port: int
    workers: int
    max_body: int
    tokens: Tokens

    def check(self) -> None:
        """Refuse what cannot be meant, or is dangerous; raises InvalidInput."""
        check_int(self.port, "port", 0, 65535)
        check_int(self.workers, "workers", 1, MAX_WORKERS)
        check_int(self.max_body, "max_body", 1, 1 << 30)
        if not self.tokens.needed and not _is_loopback(self.host):
            raise InvalidInput(
                f"to listen on {self.host} lets everybody on the network write; give a token, or "
                "listen on 127.0.0.1"
            )


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def run(
    listening: Listening, open_farm: Callable[[Metrics], AsyncFarm], ready: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or SIGINT; ``ready`` is told the address once the port is taken.

    Raises InvalidInput, and what ``open_farm`` raises, before anything listens.
    """
    listening.check()
    memory = shared(listening.workers)
    # Made once here, so that what is wrong with the farm is told, and by one process.
    open_farm(Figures(memory, 0))
    place = _bind(listening.host, listening.port)
    host, port = place.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def serve(process: int, sock: socket.socket, parent: int | None, tell: Ready) -> None:
        figures = Figures(memory, process)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_serve(sock, open_farm(figures), figures, listening, parent, tell))

    new_loop = _loop_factory()
    # What is here now stays: to look through it again and again for garbage takes milliseconds.
    gc.freeze()

    if listening.workers == 1:
        serve(0, place, None, lambda: ready(address))
    else:
        _Parent(place, listening.workers, serve).run(lambda: ready(address))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Choose the event loop: the quick one where it is to be had."""
    try:
        import uvloop
    except ImportError:
        log.warning("uvloop is not installed: the server works, with more time for each request")
        return None
    return uvloop.new_event_loop


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    place = socket.socket(family, socket.SOCK_STREAM)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        place.bind((host, port))
    except OSError as error:
        place.close()
        raise InvalidInput(
            f"cannot listen on {host}:{port} ({error.strerror or error}); choose another"
        ) from None
    return place


async def _serve(
    place: socket.socket,
    farm: AsyncFarm,
    figures: Figures,
    listening: Listening,
    parent: int | None,
    ready: Ready,
) -> None:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    if parent is not None:
        # Becomes readable when the parent is gone.
        loop.add_reader(parent, told.set)
    async with farm:
        connections = Connections(Service(farm, figures, listening.tokens), listening.max_body)
        server = await loop.create_server(connections.make, sock=place, backlog=_BACKLOG)
        sweeping = loop.create_task(connections.sweep())
        ready()
        await told.wait()
        server.close()
        sweeping.cancel()
        await connections.drain(_DRAIN_S)


class _Parent:
    """Starts processes and keeps their number."""

    def __init__(
        self,
        place: socket.socket,
        workers: int,
        serve: Callable[[int, socket.socket, int | None, Ready], None],
    ) -> None:
        # Bound and never listening: it holds the port, and gets no connections.
        self._place = place
        self._workers = workers
        self._serve = serve
        self._children: dict[int, int] = {}
        self._told = False
        # Only this process holds the end for writing; who reads sees when it is gone.
        self._alive, self._hold = os.pipe()

    def run(self, ready: Ready) -> None:
        """Keep the processes running until told to end, then let them end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._tell)
        for process in range(self._workers):
            self._start(process)
        ready()
        while self._children:
            try:
                child, _ = os.wait()
            except ChildProcessError:
                break
            process = self._children.pop(child)
            if not self._told:
                time.sleep(_PAUSE_S)
            if not self._told:
                self._start(process)

    def _tell(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._told = True
        for child in self._children:
            os.kill(child, signal.SIGTERM)

    def _start(self, process: int) -> None:
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(told)
            self._live(process, tell)
        os.close(tell)
        self._children[child] = process
        # Until it listens, or has died.
        os.read(told, 1)
        os.close(told)
        if self._told:
            os.kill(child, signal.SIGTERM)

    def _live(self, process: int, tell: int) -> NoReturn:
        """Be a child: serve, and end with the parent."""
        code = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.close(self._hold)
            place = _bind(*self._place.getsockname()[:2])
            self._place.close()
            self._serve(process, place, self._alive, lambda: _write(tell))
            code = 0
        except Exception:  # noqa: BLE001  nobody else would tell of it
            traceback.print_exc()
        finally:
            os._exit(code)


def _write(tell: int) -> None:
    os.write(tell, b".")
    os.close(tell)
