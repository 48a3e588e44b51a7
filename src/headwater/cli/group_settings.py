"""How a group is set up from the command line, of a stream or of a topic."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from typing import Annotated, Literal, NamedTuple

import typer

from headwater.cli import options
from headwater.errors import InvalidInput

GroupStart = Annotated[
    str | None,
    typer.Option(
        "--start",
        metavar="WHERE",
        help="Create the group: it starts at an offset, first, last, or a time.",
        show_default=False,
    ),
]
MaxPending = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Deliver no new messages while N await their ack; 0: no limit.",
        show_default=False,
    ),
]
KeepLetters = Annotated[
    bool | None,
    typer.Option(
        "--dead-letters/--no-dead-letters",
        help="Keep what expires in the stream STREAM.GROUP.dead, or drop it.",
        show_default=False,
    ),
]
LettersTo = Annotated[
    str | None,
    typer.Option(
        "--dead-letters-to",
        metavar="STREAM",
        help="Keep what expires in this stream.",
        show_default=False,
    ),
]
KeepOrder = Annotated[
    bool,
    typer.Option(
        "--ordered",
        help="Keep the order of each tag from now on: a message waits for those before it.",
    ),
]


class GroupSettings(NamedTuple):
    """What a command was asked to set; None leaves a setting as it is."""

    start: Literal["first", "last"] | int | dt.datetime | None
    max_pending: int | None
    dead_letters: bool | str | None
    ordered: bool

    @classmethod
    def of(
        cls,
        start: str | None,
        max_pending: int | None,
        dead_letters: bool | None,
        letters_to: str | None,
        ordered: bool,
    ) -> GroupSettings:
        """Return what the options ask for; refuses what does not go together."""
        given = (start, max_pending, dead_letters, letters_to, ordered or None)
        if all(option is None for option in given):
            raise typer.BadParameter(
                "give --start, --max-pending, --dead-letters, --no-dead-letters, "
                "--dead-letters-to or --ordered"
            )
        if dead_letters is not None and letters_to is not None:
            raise typer.BadParameter(
                "--dead-letters-to excludes --dead-letters and --no-dead-letters"
            )
        position = None if start is None else options.position(start, "--start")
        letters = dead_letters if letters_to is None else letters_to
        return cls(position, max_pending, letters, ordered)

    def check(self, where: str, group: str, there: Collection[str]) -> None:
        """Refuse to create a group that is there, or to change one that is not."""
        if self.start is not None and group in there:
            command = f"headwater {where.partition(' ')[0]} seek"
            raise InvalidInput(f"{where} has a group {group!r}; use `{command}` to move it")
        if self.start is None and group not in there:
            likely = options.similar(group, there)
            cure = f"did you mean {likely!r}?" if likely else "give --start, to create it"
            raise InvalidInput(f"{where} has no group {group!r}; {cure}")
