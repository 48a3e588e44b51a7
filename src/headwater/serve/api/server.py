"""Runs the server of a store: a client of the store for each process, and the HTTP API on it."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headwater.aio_client import AsyncHeadwater, connect
from headwater.errors import InvalidInput
from headwater.instrument import installed
from headwater.metrics.operations import OperationMetrics, shared_counts
from headwater.metrics.sampler import Sampler
from headwater.serve.api.calls import Served
from headwater.serve.api.cors import Cors
from headwater.serve.api.openapi import document
from headwater.serve.api.rates import Rates
from headwater.serve.api.routes import Router
from headwater.serve.api.service import ApiService
from headwater.serve.api.table import ROUTES
from headwater.serve.api.tails import Tails
from headwater.serve.api.writes import WriteBatches
from headwater.serve.http.limits import HttpLimits
from headwater.serve.http.server import serve_http
from headwater.serve.listening import ListenAddress, url_of
from headwater.serve.processes import ServerProcess, check_processes, run_processes
from headwater.serve.tokens import Tokens


@dataclass(frozen=True, slots=True)
class StoreServer:
    """A server of a store: where it listens, by how many processes, and what it accepts.

    ``requests_per_s`` is what each token may ask for of each process; 0 is no limit. Browsers let
    pages of the ``origins`` ask.
    """

    store_url: str | None
    address: ListenAddress
    tokens: Tokens
    workers: int
    limits: HttpLimits
    read_only: bool = False
    requests_per_s: int = 0
    origins: tuple[str, ...] = ()
    tls: ssl.SSLContext | None = None

    def run(self, ready: Callable[[str], None]) -> None:
        """Serve until SIGTERM or SIGINT; ``ready`` is called with the URL once it listens.

        Raises InvalidInput before anything listens.
        """
        self.address.check(self.tokens)
        check_processes(self.workers)
        # A mistake is reported once, before there are processes.
        if self.origins:
            Cors(self.origins)
        bound = self.address.bind()
        url = url_of(bound, "https" if self.tls else "http")
        serve = partial(self.serve, counts=shared_counts(self.workers))
        run_processes(self.workers, bound, serve, lambda: ready(url))

    async def serve(self, process: ServerProcess, *, counts: memoryview[int] | None = None) -> None:
        """Serve in one process, until it is told to stop; all processes share their counts."""
        metrics = OperationMetrics(counts, process.number)
        with installed(metrics):
            async with connect(self.store_url) as hw:
                await self._serve_store(process, hw, metrics)

    async def _serve_store(
        self, process: ServerProcess, hw: AsyncHeadwater, metrics: OperationMetrics
    ) -> None:
        tails = Tails(hw)
        sampler = Sampler(hw, metrics)
        service = ApiService(
            Served(
                hw,
                self.store_url,
                self.tokens,
                WriteBatches(hw),
                tails,
                document(ROUTES),
                metrics,
                sampler,
            ),
            Router(ROUTES),
            read_only=self.read_only,
            rates=Rates(self.requests_per_s),
            cors=Cors(self.origins) if self.origins else None,
        )
        try:
            await serve_http(process, service, self.limits, self.tls, service.drain)
        finally:
            tails.stop()
            await sampler.close()
            await service.close()


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return what a server needs for TLS, or None without a certificate; raises InvalidInput."""
    if certificate is None:
        if key is not None:
            raise InvalidInput("a key needs its certificate; give --tls-cert, too")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(
            f"{certificate} is no certificate with its key ({error}); give both as PEM"
        ) from None
    return context
