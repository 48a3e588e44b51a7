"""What the commands on dirty lists take and print in common."""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli import output
from headwater.errors import InvalidInput

if TYPE_CHECKING:
    from headwater.ick.limits import Member
    from headwater.ick.types import Listed

Key = Annotated[
    str,
    typer.Argument(metavar="KEY", help="Key of the Ick, as redis-ick has it.", show_default=False),
]
ChannelName = Annotated[
    str, typer.Argument(metavar="CHANNEL", help="Name of the channel.", show_default=False)
]
Members = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MEMBER]...", help="Members.", show_default=False),
]
Score = Annotated[
    float | None,
    typer.Option(help="Their score; the time of this machine in seconds if not said."),
]
Count = Annotated[int, typer.Option("--count", "-c", min=0, help="How many at most.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def scores(members: list[str] | None, score: float | None) -> dict[Member, float]:
    """Give the members, or those that stand on the lines of standard input, with their score."""
    when = time.time() if score is None else score
    if members:
        return dict.fromkeys(members, when)
    return {line.rstrip(b"\r\n"): when for line in sys.stdin.buffer}


def member_json(member: Member) -> dict[str, str]:
    """Give a member as text, or, when it is not UTF-8, in base 64 with a mark that says so."""
    if isinstance(member, str):
        return {"member": member}
    return {"member": base64.b64encode(member).decode(), "encoding": "base64"}


def member_of(document: dict[str, Any]) -> Member:
    """Understand what member_json gave."""
    try:
        member: str = document["member"]
        return base64.b64decode(member) if document.get("encoding") == "base64" else member
    except (KeyError, TypeError, ValueError):
        raise InvalidInput(f"{document!r} is not a member as --json prints it") from None


def show_pairs(pairs: Iterable[tuple[Member, float]], as_json: bool) -> None:
    """Print members and their scores."""
    rows = list(pairs)
    if as_json:
        output.show_json(*({**member_json(m), "score": score} for m, score in rows))
    elif rows:
        output.show_table(["member", "score"], rows, fold=2)
    else:
        output.say("nothing is dirty")


def show_listed(found: Iterator[Listed], count: int, as_json: bool) -> None:
    """Print where members are; in no order, so that no list is too long to begin with."""
    rows = list(islice(found, count))
    if as_json:
        output.show_json(*({**row._asdict(), **member_json(row.member)} for row in rows))
    elif rows:
        output.show_table(
            ["member", "score", "place", "shard"],
            [(row.member, row.score, row.place, row.shard) for row in rows],
            fold=4,
        )
    else:
        output.say("nothing is dirty")
