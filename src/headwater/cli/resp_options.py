"""The options of the RESP door: what it accepts of clients of Redis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from headwater.cli.http_options import HttpFlags
from headwater.cli.option_groups import OptionGroup
from headwater.cli.options import size_bytes
from headwater.serve.resp.limits import RespLimits

_DEFAULTS = RespLimits()


@dataclass(frozen=True)
class RespFlags(OptionGroup):
    """The limits of the door that are not those of HTTP, too."""

    resp_max_connections: Annotated[
        int, typer.Option(metavar="N", help="Redis clients that may be connected.")
    ] = _DEFAULTS.max_connections
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
