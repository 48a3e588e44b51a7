"""Commands on one Ick, which redis-ick shares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli import output
from headwater.cli.ick.cli_types import (
    Count,
    Key,
    Members,
    Score,
    Yes,
    scores,
    show_listed,
    show_pairs,
)
from headwater.cli.options import AsJson, StoreUrl, connected
from headwater.errors import UnknownIck

if TYPE_CHECKING:
    from headwater.ick.ick import Ick

_Backwash = Annotated[
    bool, typer.Option("--backwash", help="First fold back what is reserved: the lowest of all.")
]


@contextmanager
def _known(url: str | None, key: str) -> Iterator[Ick]:
    """Give an Ick that exists; a key that was never added to is taken for a slip of the pen."""
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
    """Say that members are dirty: those named, or each line of standard input.

    One that is dirty already takes the lower score.
    """
    with connected(store) as hw:
        done = hw.ick(key).add(scores(members, score))
    if as_json:
        output.show_json({"key": key, **done._asdict()})
    else:
        output.say(f"{done.new} new, {done.lowered} lowered")


def reserve(
    key: Key,
    count: Count = 10,
    backwash: _Backwash = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Reserve the lowest members, and show what is reserved; it comes again until committed."""
    with _known(store, key) as ick:
        show_pairs(ick.reserve(count, backwash), as_json)


def commit(
    key: Key,
    members: Annotated[list[str], typer.Argument(metavar="MEMBER...", help="Members.")],
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Say that reserved members are clean."""
    with _known(store, key) as ick:
        committed = ick.commit(*members)
    if as_json:
        output.show_json({"key": key, "committed": committed})
    else:
        output.say(f"committed {committed} of {len(members)}")


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
    """Show how large the sets are and between which scores."""
    with _known(store, key) as ick:
        facts = ick.stats() or {}
    if as_json:
        output.show_json(facts)
    else:
        output.show_facts(facts.items())


def list_members(
    key: Key, count: Count = 100, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Show members and the set they are in, in no order; changes nothing."""
    with _known(store, key) as ick:
        show_listed(ick.scan(), count, as_json)


def delete(key: Key, yes: Yes = False, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Remove an Ick with all its members, for ever."""
    with _known(store, key) as ick:
        if not yes:
            size = (ick.stats() or {}).get("total_size", 0)
            typer.confirm(f"Delete {key} with {size} members?", abort=True, err=True)
        ick.delete()
    if as_json:
        output.show_json({"key": key, "deleted": True})
    else:
        output.say(f"deleted {key}")
