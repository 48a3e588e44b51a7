"""Options of the commands on dead letters: which are meant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from headwater.cli.option_groups import OptionGroup
from headwater.cli.options import point_in_time
from headwater.kernel.failures import LetterFilter
from headwater.store.call import MAX_RATE

AtMost = Annotated[
    int | None,
    typer.Option(
        "--count", "-c", min=1, metavar="N", help="At most N dead letters.", show_default="all"
    ),
]
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


@dataclass(frozen=True)
class LetterFlags(OptionGroup):
    """Which dead letters are meant, by what is known of them; a queue's have no tags."""

    error: WithError = None
    min_attempts: MinAttempts = None
    after: BuriedAfter = None
    before: BuriedBefore = None

    def filter(self, tag: str | None = None) -> LetterFilter | None:
        """Return the filter that options ask for; None when there is none."""
        after, before = _ms(self.after, "--after"), _ms(self.before, "--before")
        found = LetterFilter(tag, self.error, self.min_attempts, after, before)
        return None if found == LetterFilter() else found

    def arguments(
        self, named: object, count: int | None, rate: int | None, tag: str | None = None
    ) -> dict[str, Any]:
        """Return the arguments of ``redrive`` and ``discard``; refuses names beside a filter."""
        matching = self.filter(tag)
        if named and matching is not None:
            raise typer.BadParameter("name letters, or give --tag, --error and the like, not both")
        chosen = {"letters": named, "matching": matching, "rate_per_s": rate}
        return chosen if count is None else chosen | {"count": count}


def _ms(word: str | None, option: str) -> int | None:
    if word is None:
        return None
    return int(point_in_time(word, option).timestamp() * 1000)
