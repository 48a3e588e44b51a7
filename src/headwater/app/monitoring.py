"""One port for those who watch an application: what all of its processes count, and its parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headwater.app.supervisor import Supervisor
from headwater.metrics.exposition import Page, label_text
from headwater.metrics.operations import shared_counts
from headwater.serve.listening import ListenAddress
from headwater.serve.monitoring import monitored
from headwater.serve.tokens import Tokens


@contextmanager
def watched(
    supervisor: Supervisor, address: ListenAddress, tokens: Tokens | None, counts: int | None
) -> Iterator[str]:
    """Answer /metrics, /healthz and /readyz while the block runs; yields the URL.

    It is ready while all parts run in all processes and the store answers them. ``counts`` is the
    file in which processes count. Raises InvalidInput for an address that cannot be.
    """

    def others() -> memoryview[int] | None:
        if counts is None or not supervisor.processes:
            return None
        return shared_counts(supervisor.processes, counts)

    def add(page: Page) -> None:
        add_parts(page, supervisor)

    async def ready() -> str | None:
        return supervisor.missing()

    with monitored(address, tokens, others=others, parts=[add], ready=ready) as url:
        yield url


def add_parts(page: Page, supervisor: Supervisor) -> None:
    """Add what is known of each part."""
    for part in supervisor.parts():
        page.add(
            label_text(part=part.name),
            part_done_total=part.done,
            part_failed_total=part.failed,
            part_restarts_total=part.restarts,
            part_processes=part.running,
            part_lag=part.lag,
        )
