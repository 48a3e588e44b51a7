"""How limits are set from the command line, for groups of streams and topics and for queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from headwater.cli import derived, output
from headwater.doors.catalogue import Kind
from headwater.kernel.inputs import Limits
from headwater.views.limits import LimitsView

_NoLimits: Final = Annotated[bool, typer.Option("--none", help="Remove all limits.")]


def limit_command(kind: Kind, opened: derived.Opened) -> Callable[..., None]:
    """Return the command that shows the limits of an object of a kind, or sets all of them."""
    operation = kind.operation("limit")

    def run(store: str | None, as_json: bool, none: bool, **words: Any) -> None:
        names = [words.pop("name"), *(words.pop(key) for key in kind.keys[1:])]
        wanted = Limits(**words)
        if wanted and none:
            raise typer.BadParameter("--none removes all limits; give it alone")
        with derived.opening(operation, opened)(store, *names) as target:
            state = derived.state_of(kind, target)
            before = (state[0] if isinstance(state, list) else state).limits
            limits = before
            if wanted or none:
                limits, before = wanted, target.limit(wanted)
        address = dict(zip(kind.keys, names, strict=True))
        changed = "" if limits == before else f" (before: {before})"
        done = LimitsView(**address, limits=limits, before=before)
        output.answer(done, f"limits: {limits}{changed}", as_json)

    command = derived.signed(run, operation, {"none": _NoLimits})
    command.__doc__ = "Show the limits, or set all of them: one that is not given is removed."
    return command
