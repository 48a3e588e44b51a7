"""Runs Roshi's server: the metrics that its processes share, and a farm for each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.serve.http.limits import HttpLimits
from headwater.serve.http.server import serve_http
from headwater.serve.listening import ListenAddress, url_of
from headwater.serve.processes import ServerProcess, check_processes, run_processes
from headwater.serve.timeline.prometheus import ServerMetrics, shared_memory
from headwater.serve.timeline.service import Service
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
    """A server of timelines: where it listens, by how many processes, and what it accepts.

    A ``lenient`` one reads requests as Roshi does.
    """

    address: ListenAddress
    tokens: Tokens
    workers: int
    limits: HttpLimits
    lenient: bool = False

    def run(self, open_farm: Callable[[], AsyncFarm], ready: Callable[[str], None]) -> None:
        """Serve until SIGTERM or SIGINT; ``ready`` is called with the URL once it listens.

        Raises InvalidInput, and what ``open_farm`` raises, before anything listens.
        """
        self.address.check(self.tokens, "--token")
        check_processes(self.workers)
        memory = shared_memory(self.workers)
        # Opened once here, so that a mistake in the farm is reported, and by one process.
        open_farm()

        async def serve(process: ServerProcess) -> None:
            metrics = ServerMetrics(memory, process.number)
            async with open_farm() as farm:
                farm.report_to(metrics)
                service = Service(farm, metrics, self.tokens, lenient=self.lenient)
                await serve_http(process, service, self.limits)

        bound = self.address.bind()
        url = url_of(bound, "http")
        run_processes(self.workers, bound, serve, lambda: ready(url))
