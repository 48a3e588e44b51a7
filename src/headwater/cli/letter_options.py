"""Options of the commands on dead letters: which are meant."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater.cli.options import point_in_time
from headwater.failures import LetterFilter
from headwater.store.pacing import MAX_RATE

WithTag = Annotated[
    str | None, typer.Option("--tag", help="Only letters whose message has this tag.")
]
WithError = Annotated[
    str | None,
    typer.Option("--error", metavar="TEXT", help="Only letters whose last error has this text."),
]
MinAttempts = Annotated[
    int | None,
    typer.Option(
        "--min-attempts", min=0, metavar="N", help="Only letters that were delivered N times."
    ),
]
BuriedAfter = Annotated[
    str | None,
    typer.Option("--after", metavar="TIME", help="Only letters that were given up from then on."),
]
BuriedBefore = Annotated[
    str | None,
    typer.Option("--before", metavar="TIME", help="Only letters that were given up before then."),
]
AtRate = Annotated[
    int | None,
    typer.Option(
        "--rate",
        min=1,
        max=MAX_RATE,
        metavar="N",
        help="At most N letters a second; Ctrl-C leaves the rest.",
    ),
]


def letter_filter(
    error: str | None,
    min_attempts: int | None,
    after: str | None,
    before: str | None,
    tag: str | None = None,
) -> LetterFilter | None:
    """Return the filter that options ask for; None when there is none."""
    found = LetterFilter(tag, error, min_attempts, _ms(after, "--after"), _ms(before, "--before"))
    return None if found == LetterFilter() else found


def _ms(word: str | None, option: str) -> int | None:
    if word is None:
        return None
    return int(point_in_time(word, option).timestamp() * 1000)


def check_one_choice(named: object, matching: LetterFilter | None) -> None:
    """Refuse letters that are named together with a filter."""
    if named and matching is not None:
        raise typer.BadParameter("name letters, or give --tag, --error and the like, not both")
