"""The options that all HTTP servers have in common: what they accept, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from headwater.cli.option_groups import OptionGroup
from headwater.cli.options import size_bytes
from headwater.serve.http.limits import HttpLimits

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
