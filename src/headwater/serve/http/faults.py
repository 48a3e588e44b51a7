"""What a client is told of a fault of the server itself: a number by which the log has it."""

from __future__ import annotations

import logging
import secrets

from headwater.serve.http.messages import Refused

log = logging.getLogger("headwater.serve")


def own_fault(error: BaseException) -> Refused:
    """Log an error that nobody foresaw; returns the refusal that names its place in the log."""
    number = secrets.token_hex(6)
    log.error("request %s failed", number, exc_info=error)
    return Refused(
        500, f"the server failed by a fault of its own; its log says more of request {number}"
    )
