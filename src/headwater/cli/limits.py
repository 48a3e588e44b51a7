"""How limits are set from the command line, for groups of streams and topics and for queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from headwater.kernel.inputs import MAX_IN_FLIGHT, NO_LIMITS, Limits

InFlight = Annotated[
    int | None,
    typer.Option(
        "--max-in-flight",
        min=1,
        max=MAX_IN_FLIGHT,
        metavar="N",
        help="At most N messages are with consumers at once.",
        show_default=False,
    ),
]
InFlightPerKey = Annotated[
    int | None,
    typer.Option(
        "--max-in-flight-per-key",
        min=1,
        max=MAX_IN_FLIGHT,
        metavar="N",
        help="At most N messages of one tag are with members at once.",
        show_default=False,
    ),
]
HandOutRate = Annotated[
    str | None,
    typer.Option(
        "--rate",
        metavar="RATE",
        help="How many are delivered per time, retries included: 100/s, '100/s burst 20', 10/m.",
        show_default=False,
    ),
]
RatePerKey = Annotated[
    str | None,
    typer.Option(
        "--rate-per-key",
        metavar="RATE",
        help="The same for the messages of one tag.",
        show_default=False,
    ),
]
NoLimits = Annotated[bool, typer.Option("--none", help="Remove all limits.")]


def wanted_limits(
    in_flight: int | None,
    rate: str | None,
    none: bool,
    in_flight_per_key: int | None = None,
    rate_per_key: str | None = None,
) -> Limits | None:
    """Return the limits that a command was asked to set; None when it is to show them."""
    limits = Limits(in_flight, in_flight_per_key, rate, rate_per_key)
    if limits and none:
        raise typer.BadParameter("--none removes all limits; give it alone")
    return limits if limits else NO_LIMITS if none else None


def change_limits(
    limit: Callable[[Limits], Limits], present: Limits, wanted: Limits | None
) -> tuple[Limits, Limits]:
    """Set the limits that are wanted, if any; returns those that count now, and those before."""
    return (present, present) if wanted is None else (wanted, limit(wanted))


def limits_text(limits: Limits, before: Limits) -> str:
    """Return what happened to limits, as a sentence."""
    if limits == before:
        return f"limits: {limits}"
    return f"limits: {limits} (before: {before})"
