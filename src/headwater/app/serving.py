"""Runs a server: in this process, or in several that a supervisor keeps.

The processes of a server share its ports and do not talk to each other; the kernel spreads
connections over them. They count in one file, so each shows the metrics of all.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from headwater.app.application import App
from headwater.app.parts import Part, Resources, SharedFile
from headwater.app.supervisor import RunPlan, Supervisor
from headwater.kernel.inputs import check_int
from headwater.metrics.sampler import MAX_SERIES
from headwater.serve.api.opening import ApiSettings
from headwater.serve.console.service import Console
from headwater.serve.limits import HttpLimits
from headwater.serve.listening import (
    ListenAddress,
    ServerProcess,
    bound_address,
    prepare_process,
    run_process,
)
from headwater.serve.store_server import RespListening, StoreServer, tls_context
from headwater.serve.timeline.server import TimelineServer, timeline_tokens
from headwater.serve.tokens import TokenFile, Tokens

MAX_PROCESSES: Final = 64
# What a process has left after its requests: to hand over jobs, and to close its clients.
_CLOSING_MS: Final = 10_000


class Server(Protocol):
    """What is served, in whichever process."""

    @property
    def drain_ms(self) -> int:
        """How long requests may take to end once it is told to stop."""

    def bind(self) -> list[socket.socket]:
        """Check what can be checked, and take the ports; raises before anything listens."""

    def urls(self, sockets: Sequence[socket.socket]) -> list[str]:
        """Return where it is served."""

    async def serve(self, process: ServerProcess) -> None:
        """Serve in one process until that is told to stop."""


class ServedStore(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What ``headwater serve`` serves; paths and URLs, of which each process opens its own."""

    store: str | None
    http: ListenAddress
    limits: HttpLimits = HttpLimits()
    resp: RespListening | None = None
    tokens: Path | None = None
    read_only: bool = False
    requests_per_s: int = 0
    origins: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    farm: str | None = None
    db: str | None = None
    max_series: int = MAX_SERIES
    history: int = 0

    def server(self) -> StoreServer:
        """Return the server; raises InvalidInput for tokens or a certificate that cannot be."""
        settings = ApiSettings(
            self.store,
            Tokens() if self.tokens is None else TokenFile(self.tokens),
            self.read_only,
            self.requests_per_s,
            self.origins,
            farm=self.farm,
            db=self.db,
            max_series=self.max_series,
            history=self.history,
        )
        tls = tls_context(self.tls_cert, self.tls_key)
        return StoreServer(settings, self.http, self.limits, tls, self.resp, Console)


class ServedTimelines(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What ``headwater timeline serve`` serves; ``farm`` has arguments of ``AsyncFarm.open``."""

    http: ListenAddress
    limits: HttpLimits
    instances: str
    farm: dict[str, Any]
    token: str | None = None
    read_token: str | None = None
    lenient: bool = False

    def server(self) -> TimelineServer:
        """Return the server; raises InvalidInput for tokens that cannot be."""
        tokens = timeline_tokens(self.token, self.read_token)
        return TimelineServer(
            self.http, tokens, self.limits, self.instances, self.farm, lenient=self.lenient
        )


Served: TypeAlias = ServedStore | ServedTimelines


def run_server(served: Served, workers: int, ready: Callable[..., None]) -> None:
    """Serve in this many processes until SIGTERM or SIGINT; with one, in this process.

    ``ready`` is called with the URLs once all of them listen. Raises InvalidInput, and what opening
    a farm or a database raises, before anything listens.
    """
    check_int(workers, "workers", 1, MAX_PROCESSES)
    server: Server = served.server()
    # A mistake is reported once, before there are processes. The sockets are bound and never
    # listen: they hold the ports for the processes, and receive no connections.
    sockets = server.bind()
    urls = server.urls(sockets)
    if workers == 1:
        run_process(server.serve, sockets, lambda: ready(*urls))
        return
    plan = RunPlan(
        "headwater.serve",
        workers=workers,
        drain_ms=server.drain_ms + _CLOSING_MS,
        served=msgspec.to_builtins([served, [bound_address(bound) for bound in sockets]]),
    )
    with tempfile.TemporaryFile(prefix="headwater-counts-") as counts:
        Supervisor(plan, counts=counts.fileno(), ready=lambda: ready(*urls)).run()


def app_of(served: Any) -> App:
    """Return the application whose only part is a server, of what a plan says is served."""
    described, addresses = msgspec.convert(served, tuple[Served, list[ListenAddress]])
    app = App()
    app.add(ServerPart(described.server(), addresses))
    return app


class ServerPart(Part):
    """A server in each process of an application, at the same addresses."""

    kind = "server"
    needs = frozenset()
    counts_itself = True

    def __init__(self, server: Server, addresses: Sequence[ListenAddress]) -> None:
        where = ",".join(f"{address.host}:{address.port}" for address in addresses)
        super().__init__("server", where, is_async=True, spread=True)
        self._server = server
        self._addresses = addresses

    def open(self, resources: Resources) -> _Serving:
        """Return what serves; in the event loop."""
        prepare_process()
        return _Serving(self._server, self._addresses, resources.shared)

    def is_ready(self, work: _Serving) -> bool:
        """Return whether it listens."""
        return work.listens


class _Serving:
    """A server in one process."""

    def __init__(
        self, server: Server, addresses: Sequence[ListenAddress], shared: SharedFile
    ) -> None:
        self._server = server
        self._addresses = addresses
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.listens = False

    async def run(self) -> None:
        """Serve beside the other processes, until it is stopped."""
        bound, *also = [address.bind_again() for address in self._addresses]
        number, processes, file = self._shared
        process = ServerProcess(
            number, bound, self._stop, self._ready, tuple(also), processes, file
        )
        await self._server.serve(process)

    def stop(self) -> None:
        """Let it answer what was asked, and end; from any thread."""
        self._loop.call_soon_threadsafe(self._stop.set)

    def _ready(self) -> None:
        self.listens = True
