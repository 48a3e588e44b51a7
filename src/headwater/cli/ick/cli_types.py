"""What the commands on dirty lists take and print in common."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import completing, output

if TYPE_CHECKING:
    from headwater.ick.keys import Member
    from headwater.ick.types import Listed

Key = Annotated[
    str,
    typer.Argument(
        metavar="KEY", help="Key of the Ick, as redis-ick spells it.", show_default=False
    ),
]
ChannelName = Annotated[
    str,
    typer.Argument(
        metavar="CHANNEL",
        help="Name of the channel.",
        show_default=False,
        autocompletion=completing.channels,
    ),
]
Members = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MEMBER]...", help="Members.", show_default=False),
]
Score = Annotated[
    float | None,
    typer.Option(help="The score of all of them. Default: this machine's time in seconds."),
]

_EMPTY = "nothing is dirty"


def scores(members: list[str] | None, score: float | None) -> dict[Member, float]:
    """Return the members, or the lines of standard input as members, with their score."""
    when = time.time() if score is None else score
    if members:
        return dict.fromkeys(members, when)
    return {line.rstrip(b"\r\n"): when for line in sys.stdin.buffer}


def show_pairs(pairs: Iterable[tuple[Member, float]], as_json: bool) -> None:
    """Print members and their scores."""
    output.show_list(
        list(pairs),
        lambda pair: views.icks.ScoredView.of(*pair),
        {"member": lambda pair: pair[0], "score": lambda pair: pair[1]},
        as_json,
        nothing=_EMPTY,
        fold=2,
    )


def show_listed(found: Iterator[Listed], count: int, as_json: bool) -> None:
    """Print where members are; in no order, so that no list is too long to begin with."""
    output.show_list(
        list(islice(found, count)),
        views.icks.ListedView.of,
        {
            "member": lambda row: row.member,
            "score": lambda row: row.score,
            "place": lambda row: row.place,
            "shard": lambda row: row.shard,
        },
        as_json,
        nothing=_EMPTY,
        fold=4,
    )
