"""Runs Roshi's server: the metrics that its processes share, and a farm for each of them."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.serve.http.connection import serve_http
from headwater.serve.limits import HttpLimits
from headwater.serve.listening import ListenAddress, ServerProcess, url_of
from headwater.serve.timeline.service import ServerMetrics, Service, shared_memory
from headwater.serve.tokens import Tokens
from headwater.timeline.farm.aio_farm import AsyncFarm


def timeline_tokens(token: str | None, read_token: str | None) -> Tokens:
    """Return the tokens of a server: one that allows everything, one for reading; or neither.

    Raises InvalidInput for a read token alone.
    """
    if read_token is not None and token is None:
        raise InvalidInput("a read token alone leaves writing to nobody; give a token too")
    given = ((token, Scope.WRITE), (read_token, Scope.READ))
    return Tokens((text, scope) for text, scope in given if text is not None)


@dataclass(frozen=True, slots=True)
class TimelineServer:
    """A server of timelines: where it listens, what it accepts, and of which farm they are.

    ``farm`` has the further arguments of ``AsyncFarm.open``. A ``lenient`` one reads requests as
    Roshi does.
    """

    address: ListenAddress
    tokens: Tokens
    limits: HttpLimits
    instances: str
    farm: Mapping[str, Any]
    lenient: bool = False

    @property
    def drain_ms(self) -> int:
        """How long requests may take to end once it is told to stop."""
        return self.limits.drain_ms

    def bind(self) -> list[socket.socket]:
        """Check what can be checked, and take the port; raises InvalidInput."""
        self.address.check(self.tokens, "--token")
        self._open_farm()
        return [self.address.bind()]

    def urls(self, sockets: Sequence[socket.socket]) -> list[str]:
        """Return where it is served."""
        return [url_of(bound, "http") for bound in sockets]

    async def serve(self, process: ServerProcess) -> None:
        """Serve in one process, until it is told to stop; all processes share their counts."""
        memory = shared_memory(process.processes, process.counts)
        metrics = ServerMetrics(memory, process.number)
        async with self._open_farm() as farm:
            farm.report_to(metrics)
            service = Service(farm, metrics, self.tokens, lenient=self.lenient)
            await serve_http(process, service, self.limits)

    def _open_farm(self) -> AsyncFarm:
        return AsyncFarm.open(self.instances, **self.farm)
