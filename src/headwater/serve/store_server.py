"""Runs the server of a store: a client of it for each process, and on that HTTP and RESP."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headwater.aio_client import connect
from headwater.errors import InvalidInput
from headwater.kernel.failures import START_MS
from headwater.kernel.instrument import also_installed
from headwater.metrics.operations import OperationMetrics, shared_counts
from headwater.serve.api.opening import ApiSettings, open_api, open_farm
from headwater.serve.api.service import ApiService
from headwater.serve.batching import StreamWrites
from headwater.serve.http.connection import serve_http
from headwater.serve.http.messages import Handler
from headwater.serve.limits import HttpLimits, RespLimits
from headwater.serve.listening import ListenAddress, ServerProcess, is_loopback, url_of
from headwater.serve.resp.connection import serve_resp
from headwater.serve.resp.door import Door

log = logging.getLogger("headwater.serve")


class RespListening(NamedTuple):
    """Where clients of Redis are served, and what is accepted of them."""

    address: ListenAddress
    limits: RespLimits


@dataclass(frozen=True, slots=True)
class StoreServer:
    """A server of a store: what it serves, where it listens, and what it accepts.

    With ``resp``, clients of Redis are served there, too. ``front`` is served in front of the API.
    """

    settings: ApiSettings
    address: ListenAddress
    limits: HttpLimits
    tls: ssl.SSLContext | None = None
    resp: RespListening | None = None
    front: Callable[[ApiService], Handler] = lambda service: service

    @property
    def drain_ms(self) -> int:
        """How long requests may take to end once it is told to stop."""
        resp = 0 if self.resp is None else self.resp.limits.drain_ms
        return max(self.limits.drain_ms, resp)

    def bind(self) -> list[socket.socket]:
        """Check what can be checked, and take the ports.

        Raises InvalidInput, DatabaseUnreachable and ExtraMissing before anything listens.
        """
        doors = [self.address] if self.resp is None else [self.address, self.resp.address]
        for address in doors:
            address.check(self.settings.tokens)
        self.settings.check()
        wide = [address.host for address in doors if not is_loopback(address.host)]
        if self.tls is None and wide:
            log.warning(
                "tokens and messages travel in clear text to %s; use --tls-cert and --tls-key, or "
                "a proxy that speaks TLS",
                " and ".join(dict.fromkeys(wide)),
            )
        return [address.bind() for address in doors]

    def urls(self, sockets: Sequence[socket.socket]) -> list[str]:
        """Return where it is served over HTTP, and then over RESP if it is."""
        schemes = ("https", "rediss") if self.tls else ("http", "redis")
        return [url_of(bound, scheme) for bound, scheme in zip(sockets, schemes, strict=False)]

    async def serve(self, process: ServerProcess) -> None:
        """Serve in one process, until it is told to stop; all processes share their counts."""
        counts = shared_counts(process.processes, process.counts)
        metrics = OperationMetrics(counts, process.number)
        settings = self.settings
        with also_installed(metrics):
            async with (
                connect(settings.store_url, wait_ms=START_MS) as hw,
                open_farm(settings.farm) as farm,
                asyncio.TaskGroup() as serving,
            ):
                # Both doors add to the same batches.
                writes = StreamWrites(hw)
                if self.resp is not None:
                    tokens, limits = settings.tokens, self.resp.limits
                    door = Door(
                        hw, writes, tokens, limits, farm, settings.read_only, metrics.change
                    )
                    listens = asyncio.Event()
                    at = process._replace(bound=process.also[0], ready=listens.set)
                    serving.create_task(serve_resp(at, door, self.tls))
                    await listens.wait()
                async with open_api(settings, hw, writes, metrics, farm) as service:
                    handler = self.front(service)
                    changed = partial(metrics.change, "http_connections")
                    await serve_http(
                        process, handler, self.limits, self.tls, service.drain, changed
                    )


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
            f"{certificate} is not a certificate with its key ({error}); give both as PEM"
        ) from None
    return context
