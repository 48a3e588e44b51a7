"""Commands on dead letters: tables of those of a group or a queue, and all of them together.

``redrive`` and ``discard`` of one group or queue are derived from their operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.derived import taking
from headwater.cli.options import AsJson, StoreUrl, Yes, confirm, connected, similar
from headwater.doors.catalogue import GROUP
from headwater.errors import InvalidInput
from headwater.kernel.failures import LetterFilter

if TYPE_CHECKING:
    from headwater.client import Headwater
    from headwater.log.group import Group
    from headwater.log.topic import TopicGroup
    from headwater.log.types import DeadLetter, TopicDeadLetter
    from headwater.queue.types import QueueItem
    from headwater.whole_store.letters import LettersMoved

# ── Of one group or queue ─────────────────────────────────────────────────────────────────────────


def show_queue_letters(_: object, letters: list[QueueItem], as_json: bool) -> None:
    """Print dead letters of a queue."""
    output.show_items(letters, as_json, "given up", "no dead letters")


def show_group_letters(
    group: Group[Any] | TopicGroup[Any],
    letters: Sequence[DeadLetter | TopicDeadLetter],
    as_json: bool,
) -> None:
    """Print dead letters of a group."""
    nothing = "no dead letters"
    found = group.info()
    state = found if isinstance(found, list) else [found]
    if not any(info.dead_letters for info in state):
        nothing = f"{group.name} keeps no dead letters"
    elif pending := sum(info.pending for info in state):
        nothing += (
            f"; of {output.counted(pending, 'pending message')}, one that has expired becomes a "
            "dead letter with the next read of the group, or by headwater keep"
        )
    partition: dict[str, Callable[[Any], object]] = {"partition": lambda letter: letter.partition}
    headers: dict[str, Callable[[Any], object]] = {
        "headers": lambda letter: output.headers_text(letter.headers)
    }
    output.show_list(
        letters,
        views.streams.DeadLetterView.of,
        (partition if any(hasattr(one, "partition") for one in letters) else {})
        | {
            "origin": lambda letter: letter.origin,
            "attempts": lambda letter: letter.attempts,
            "buried": lambda letter: output.time_text(letter.buried_ms),
        }
        # What may be long comes last and wraps; the columns before it are shown whole.
        | {"tag": lambda letter: letter.tag}
        | (headers if any(one.headers for one in letters) else {})
        | {
            "value": lambda letter: letter.value,
            "cause": lambda letter: letter.cause and str(letter.cause),
        },
        as_json,
        fold=3 + any(one.headers for one in letters),
        nothing=nothing,
    )


# ── Of all groups and queues ──────────────────────────────────────────────────────────────────────


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


_FILTERED = taking(GROUP, "redrive", "count", "offsets")


def _chosen(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a command as ``redrive_everywhere`` takes them."""
    rate = given.pop("rate", None)
    return {"matching": LetterFilter(**given) if given else None, "rate_per_s": rate}


@app.command("list")
def list_places(names: _Names = None, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show which groups and queues have dead letters, and how many."""
    from headwater.whole_store.letters import count_everywhere

    with connected(store) as hw:
        found = hw.store.run(count_everywhere(_known(hw, names)))
    output.show_list(
        found,
        views.stores.LetterCountView.of,
        {
            "kind": lambda one: "group" if one.group else "queue",
            "name": lambda one: f"{one.name} / {one.group}" if one.group else one.name,
            "dead": lambda one: one.dead,
        },
        as_json,
        nothing="no dead letters",
    )


@app.command("redrive")
@_FILTERED
def redrive_everywhere(
    names: _Names = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Redrive dead letters of all groups and queues; their attempts begin anew."""
    with connected(store) as hw:
        done = hw.redrive_everywhere(*_known(hw, names), **_chosen(given))
    _say_moved("redriven", done, as_json)


@app.command("discard")
@_FILTERED
def discard_everywhere(
    names: _Names = None,
    yes: Yes = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Discard dead letters of all groups and queues, for ever; asks before that."""
    with connected(store) as hw:
        known = _known(hw, names)
        confirm("Discard dead letters of all groups and queues that fit, for ever?", yes)
        done = hw.discard_everywhere(*known, **_chosen(given))
    _say_moved("discarded", done, as_json)


def _say_moved(word: str, done: LettersMoved, as_json: bool) -> None:
    lost = f"; {done.gone} stay, because streams no longer hold them" if done.gone else ""
    said = f"{word}: {done.moved}, in {done.places} groups and queues{lost}"
    output.answer(views.stores.LettersMovedView.of(done), said, as_json)
