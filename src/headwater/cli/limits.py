"""``limit``: how limits are shown and set, for groups of streams and topics and for queues."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.derived import Opened, addressed, opening, state_of
from headwater.cli.options import AsJson, StoreUrl
from headwater.doors.catalogue import Kind
from headwater.kernel.inputs import MAX_IN_FLIGHT, Limits

_InFlight = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MAX_IN_FLIGHT,
        metavar="N",
        help="At most N messages are with consumers at once.",
    ),
]
_InFlightPerKey = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MAX_IN_FLIGHT,
        metavar="N",
        help="At most N messages of one tag are with members at once.",
    ),
]
_Rate = Annotated[
    str | None,
    typer.Option(
        metavar="RATE",
        help="How many are delivered per time, retries included: 100/s, '100/s burst 20', 10/m.",
    ),
]
_RatePerKey = Annotated[
    str | None, typer.Option(metavar="RATE", help="The same for the messages of one tag.")
]
_NoLimits = Annotated[bool, typer.Option("--none", help="Remove all limits.")]


def limit_command(kind: Kind, opened: Opened, *without: str) -> Callable[..., None]:
    """Return the command ``limit`` of a kind of object, without limits that it cannot keep."""

    def limit(
        *,
        max_in_flight: _InFlight = None,
        max_in_flight_per_key: _InFlightPerKey = None,
        rate: _Rate = None,
        rate_per_key: _RatePerKey = None,
        none: _NoLimits = False,
        store: StoreUrl = None,
        as_json: AsJson = False,
        **address: str,
    ) -> None:
        """Show the limits, or set all of them: what is not named is not limited."""
        wanted = Limits(max_in_flight, max_in_flight_per_key, rate, rate_per_key)
        if wanted and none:
            raise typer.BadParameter("--none removes all limits; give it alone")
        names = [address["name"], *(address[key] for key in kind.keys[1:])]
        with opening(kind.operation("limit"), opened)(store, *names) as target:
            state = state_of(kind, target)
            limits = before = (state[0] if isinstance(state, list) else state).limits
            if wanted or none:
                limits, before = wanted, target.limit(wanted)
        done = views.queues.LimitsView(
            **dict(zip(kind.keys, names, strict=True)), limits=limits, before=before
        )
        change = "" if limits == before else f" (before: {before})"
        output.answer(done, f"limits: {limits}{change}", as_json)

    *own, _ = inspect.signature(limit, eval_str=True).parameters.values()
    return addressed(limit, kind, [one for one in own if one.name not in without])
