"""``headwater letters``: dead letters of all groups and queues of a store together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.letter_options import AtRate, LetterFlags, WithTag
from headwater.cli.option_groups import grouped
from headwater.cli.options import AsJson, StoreUrl, Yes, confirm, connected, similar
from headwater.errors import InvalidInput

if TYPE_CHECKING:
    from headwater.client import Headwater

app = typer.Typer()
_Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]...",
        help="Only of these streams and queues; * stands for any text, in quotes.",
        show_default=False,
    ),
]


def _known(hw: Headwater, names: list[str] | None) -> list[str]:
    """Return the names; refuses one that nothing has, as most often it is mistyped."""
    plain = [name for name in names or () if name and "*" not in name]
    there = {*hw.streams(), *hw.queues()} if plain else set()
    for name in plain:
        if name not in there:
            likely = similar(name, there)
            cure = f"did you mean {likely!r}?" if likely else "check the name"
            raise InvalidInput(f"there is neither a stream nor a queue {name!r}; {cure}")
    return names or []


@app.command("list")
def list_places(names: _Names = None, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show which groups and queues have dead letters, and how many."""
    from headwater.whole_store.letters import count_everywhere

    with connected(store) as hw:
        found = hw.store.run(count_everywhere(_known(hw, names)))
    output.show_list(
        found,
        views.server_jobs.LetterCountView.of,
        {
            "kind": lambda one: "group" if one.group else "queue",
            "name": lambda one: f"{one.name} / {one.group}" if one.group else one.name,
            "dead": lambda one: one.dead,
        },
        as_json,
        nothing="no dead letters",
    )


@app.command("redrive")
@grouped
def redrive(
    *,
    names: _Names = None,
    tag: WithTag = None,
    fitting: LetterFlags,
    rate: AtRate = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Return dead letters of all groups and queues to them; their attempts begin anew."""
    matching = fitting.filter(tag)
    with connected(store) as hw:
        done = hw.redrive_everywhere(*_known(hw, names), matching=matching, rate_per_s=rate)
    lost = f"; {done.gone} stay, because streams no longer hold them" if done.gone else ""
    output.answer(
        views.server_jobs.LettersMovedView.of(done),
        f"redriven: {done.moved}, in {done.places} groups and queues{lost}",
        as_json,
    )


@app.command("discard")
@grouped
def discard(
    *,
    names: _Names = None,
    tag: WithTag = None,
    fitting: LetterFlags,
    rate: AtRate = None,
    yes: Yes = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Forget dead letters of all groups and queues, for ever; asks before that."""
    matching = fitting.filter(tag)
    with connected(store) as hw:
        chosen = _known(hw, names)
        confirm("Forget dead letters of all groups and queues that fit, for ever?", yes)
        done = hw.discard_everywhere(*chosen, matching=matching, rate_per_s=rate)
    output.answer(
        views.server_jobs.LettersMovedView.of(done),
        f"discarded: {done.moved}, in {done.places} groups and queues",
        as_json,
    )
