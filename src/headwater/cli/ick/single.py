"""Commands on one Ick, which redis-ick shares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.ick.cli_types import Key, Members, Score, scores, show_listed, show_pairs
from headwater.cli.options import AsJson, Count, StoreUrl, Yes, confirm, connected
from headwater.errors import UnknownIck

if TYPE_CHECKING:
    from headwater.ick.ick import Ick

_Backwash = Annotated[
    bool,
    typer.Option(
        "--backwash", help="First return what is reserved, so that the lowest of all are reserved."
    ),
]


@contextmanager
def _known(url: str | None, key: str) -> Iterator[Ick]:
    """Yield an Ick that exists; raises UnknownIck, as most often the key is mistyped."""
    with connected(url) as hw:
        ick = hw.ick(key)
        if ick.stats() is None:
            raise UnknownIck(key)
        yield ick


def add(
    key: Key,
    members: Members = None,
    score: Score = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Add members that are dirty: those named, or each line of standard input.

    A member that is dirty already keeps the lower score.
    """
    with connected(store) as hw:
        done = hw.ick(key).add(scores(members, score))
    output.answer(
        views.icks.IckAddedView.of(done, key=key),
        f"{done.new} new, {done.lowered} lowered",
        as_json,
    )


def reserve(
    key: Key,
    count: Count = 10,
    backwash: _Backwash = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Reserve the lowest members, and show all that are reserved, until they are committed."""
    with _known(store, key) as ick:
        show_pairs(ick.reserve(count, backwash), as_json)


def commit(
    key: Key,
    members: Annotated[list[str], typer.Argument(metavar="MEMBER...", help="Members.")],
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Commit reserved members: they are clean."""
    with _known(store, key) as ick:
        committed = ick.commit(*members)
    done = views.icks.IckCommittedView(key=key, committed=committed)
    output.answer(done, f"committed {committed} of {len(members)}", as_json)


def exchange(
    key: Key,
    members: Members = None,
    count: Count = 10,
    backwash: _Backwash = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Commit members, then reserve, in one step."""
    with _known(store, key) as ick:
        show_pairs(ick.exchange(count, *(members or ()), backwash=backwash), as_json)


def stats(key: Key, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show the sizes of both sets, and their lowest and highest scores."""
    with _known(store, key) as ick:
        facts = ick.stats() or {}
    if as_json:
        output.show_json(views.icks.IckView.of(facts))
    else:
        output.show_facts(facts.items())


def list_members(
    key: Key, count: Count = 100, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Show members and the set they are in, in no particular order; changes nothing."""
    with _known(store, key) as ick:
        show_listed(ick.scan(), count, as_json)


def delete(key: Key, yes: Yes = False, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Remove an Ick with all its members permanently."""
    with _known(store, key) as ick:
        size = (ick.stats() or {}).get("total_size", 0)
        confirm(f"Delete {key} with {output.counted(size, 'member')}?", yes)
        ick.delete()
    output.answer(views.icks.IckDeletedView(key=key), f"deleted {key}", as_json)
