"""Opens what answers the requests of the API in one process: by our own server, or under ASGI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from headwater.aio_client import AsyncHeadwater
from headwater.metrics.operations import OperationMetrics
from headwater.metrics.sampler import Sampler
from headwater.serve.api.calls import Served
from headwater.serve.api.cors import Cors, check_local
from headwater.serve.api.openapi import document
from headwater.serve.api.rates import Rates
from headwater.serve.api.routes import Router
from headwater.serve.api.service import ApiService, Guard
from headwater.serve.api.table import ROUTES
from headwater.serve.api.tails import Tails
from headwater.serve.stream_writes import StreamWrites
from headwater.serve.tokens import Tokens


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """What is served, and to whom.

    ``requests_per_s`` is what each token may ask for of each process; 0 is no limit. Browsers let
    pages of the ``origins`` ask.
    """

    store_url: str | None
    tokens: Tokens
    read_only: bool = False
    requests_per_s: int = 0
    origins: tuple[str, ...] = ()
    guard: Guard = check_local

    def check(self) -> None:
        """Check what would fail later; raises InvalidInput."""
        if self.origins:
            Cors(self.origins)


@asynccontextmanager
async def open_api(
    settings: ApiSettings, hw: AsyncHeadwater, writes: StreamWrites, metrics: OperationMetrics
) -> AsyncIterator[ApiService]:
    """Serve a store in the block; at its end no request is under way."""
    tails = Tails(hw)
    sampler = Sampler(hw, metrics)
    service = ApiService(
        Served(
            hw,
            settings.store_url,
            settings.tokens,
            writes,
            tails,
            document(ROUTES),
            metrics,
            sampler,
        ),
        Router(ROUTES),
        read_only=settings.read_only,
        rates=Rates(settings.requests_per_s),
        cors=Cors(settings.origins) if settings.origins else None,
        guard=settings.guard,
    )
    try:
        yield service
    finally:
        service.drain()
        tails.stop()
        await sampler.close()
        await service.close()
