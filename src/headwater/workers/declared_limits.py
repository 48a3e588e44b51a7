"""Limits that a worker declares: those of its group or queue, which count for all workers."""

from __future__ import annotations

import logging

from headwater.errors import InvalidInput
from headwater.kernel.inputs import Limits, check_for_queue, check_for_topic


def check_limits(limits: Limits | None, *, topic: bool = False, queue: bool = False) -> None:
    """Refuse limits that the source of a worker cannot keep."""
    if limits is None:
        return
    if not isinstance(limits, Limits):
        raise InvalidInput(
            f"limits must be a Limits, as Limits(rate='100/s'), not a {type(limits).__name__}"
        )
    if topic:
        check_for_topic(limits)
    if queue:
        check_for_queue(limits)


def log_replaced(log: logging.Logger, where: str, limits: Limits | None, before: Limits) -> None:
    """Log that limits replaced others, which another worker or an operator had set."""
    if before and before != limits:
        log.warning(
            "%s: its limits were %s; this worker declares %s, which now apply to all workers",
            where,
            before,
            limits,
        )
