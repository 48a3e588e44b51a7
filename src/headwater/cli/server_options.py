"""Options of commands that serve: addresses, limits of HTTP and of RESP, monitoring."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli import output
from headwater.cli.options import OptionGroup, size_bytes
from headwater.serve.http.limits import HttpLimits
from headwater.serve.resp.limits import RespLimits

if TYPE_CHECKING:
    from headwater.serve.monitoring import AddMetrics


_DEFAULTS = HttpLimits()


@dataclass(frozen=True)
class HttpFlags(OptionGroup):
    """The limits of an HTTP server."""

    max_connections: Annotated[
        int, typer.Option(metavar="N", help="Connections that may be open.")
    ] = _DEFAULTS.max_connections
    max_anonymous: Annotated[
        int, typer.Option(metavar="N", help="Connections whose clients have shown no token.")
    ] = _DEFAULTS.max_anonymous
    max_buffered: Annotated[
        str, typer.Option(metavar="SIZE", help="What all connections may buffer together.")
    ] = "64MiB"
    max_head: Annotated[str, typer.Option(metavar="SIZE", help="Largest head of a request.")] = (
        "64KiB"
    )
    max_headers: Annotated[
        int, typer.Option(metavar="N", help="Headers of a request, trailers included.")
    ] = _DEFAULTS.max_headers
    max_body: Annotated[str, typer.Option(metavar="SIZE", help="Largest body of a request.")] = (
        "16MiB"
    )
    head_ms: Annotated[
        int,
        typer.Option(
            "--head-ms",
            help="Milliseconds from the first byte of a head to its last, and until an idle "
            "client that has shown no token is disconnected.",
        ),
    ] = _DEFAULTS.head_ms
    request_ms: Annotated[
        int,
        typer.Option(
            "--request-ms", help="Milliseconds from the first byte of a request to its last."
        ),
    ] = _DEFAULTS.request_ms
    idle_ms: Annotated[
        int,
        typer.Option("--idle-ms", help="Milliseconds until an idle client is disconnected."),
    ] = _DEFAULTS.idle_ms
    reply_ms: Annotated[
        int, typer.Option("--reply-ms", help="Milliseconds that a client may take to read a reply.")
    ] = _DEFAULTS.reply_ms
    drain_ms: Annotated[
        int,
        typer.Option(
            "--drain-ms", help="Milliseconds that running requests have to finish after a signal."
        ),
    ] = _DEFAULTS.drain_ms

    def limits(self) -> HttpLimits:
        """Return the limits; raises InvalidInput for those that cannot work."""
        return HttpLimits(
            max_connections=self.max_connections,
            max_anonymous=self.max_anonymous,
            max_buffered=size_bytes(self.max_buffered, "--max-buffered"),
            max_head=size_bytes(self.max_head, "--max-head"),
            max_headers=self.max_headers,
            max_body=size_bytes(self.max_body, "--max-body"),
            head_ms=self.head_ms,
            request_ms=self.request_ms,
            idle_ms=self.idle_ms,
            reply_ms=self.reply_ms,
            drain_ms=self.drain_ms,
        )


_RESP_DEFAULTS = RespLimits()


@dataclass(frozen=True)
class RespFlags(OptionGroup):
    """The limits of the door that are not those of HTTP, too."""

    resp_max_connections: Annotated[
        int, typer.Option(metavar="N", help="Redis clients that may be connected.")
    ] = _RESP_DEFAULTS.max_connections
    resp_max_buffered: Annotated[
        str, typer.Option(metavar="SIZE", help="What all of them may buffer together.")
    ] = "256MiB"
    resp_max_frame: Annotated[
        str, typer.Option(metavar="SIZE", help="Largest command of one of them.")
    ] = "80MiB"
    resp_max_reply: Annotated[
        str, typer.Option(metavar="SIZE", help="Largest reply to one of them.")
    ] = "64MiB"

    def limits(self, http: HttpFlags) -> RespLimits:
        """Return the limits; raises InvalidInput for those that cannot work."""
        return RespLimits(
            max_connections=self.resp_max_connections,
            max_anonymous=http.max_anonymous,
            max_buffered=size_bytes(self.resp_max_buffered, "--resp-max-buffered"),
            max_frame=size_bytes(self.resp_max_frame, "--resp-max-frame"),
            max_reply=size_bytes(self.resp_max_reply, "--resp-max-reply"),
            hello_ms=http.head_ms,
            frame_ms=http.request_ms,
            reply_ms=http.reply_ms,
            drain_ms=http.drain_ms,
        )


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
