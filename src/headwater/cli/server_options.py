"""Options of commands that run for long and may be watched: metrics, and whether they work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli import output
from headwater.cli.options import OptionGroup

if TYPE_CHECKING:
    from headwater.serve.monitoring import AddMetrics


@dataclass(frozen=True)
class MonitoringFlags(OptionGroup):
    """Where a process is watched, and by whom."""

    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="ADDR",
            help="Serve /metrics, /healthz and /readyz at this host and port.",
            show_default=False,
        ),
    ] = None
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="HEADWATER_TOKENS",
            help="The file of tokens, made by `headwater token`; /metrics then needs one of them. "
            "Without it, --metrics listens on the loopback only.",
            show_default=False,
        ),
    ] = None

    @contextmanager
    def watched(self, store: str | None, *parts: AddMetrics) -> Iterator[None]:
        """Let this process be watched while a block runs, if that was asked for.

        It is ready while its store answers. Raises InvalidInput for an address that cannot be.
        """
        if self.metrics is None:
            yield
            return
        from headwater.kernel.packaging import extra_needed

        with extra_needed("serve"):
            from headwater.serve.listening import parse_address
            from headwater.serve.monitoring import monitored, store_ready
        from headwater.serve.tokens import TokenFile

        tokens = None if self.tokens is None else TokenFile(self.tokens)
        address = parse_address(self.metrics)
        with monitored(address, tokens, parts=parts, ready=store_ready(store)) as url:
            output.warn(f"metrics on {url}/metrics")
            yield
