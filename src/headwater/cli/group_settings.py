"""How a group is set up from the command line, of a stream or of a topic."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from headwater.cli import options
from headwater.cli.options import OptionGroup
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


@dataclass(frozen=True)
class GroupSettings(OptionGroup):
    """What a command was asked to set; None leaves a setting as it is."""

    start: GroupStart = None
    max_pending: MaxPending = None
    dead_letters: KeepLetters = None
    letters_to: LettersTo = None
    ordered: KeepOrder = False

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``group`` beside its name; refuses what does not go together."""
        if self == GroupSettings():
            raise typer.BadParameter(
                "give --start, --max-pending, --dead-letters, --no-dead-letters, "
                "--dead-letters-to or --ordered"
            )
        if self.dead_letters is not None and self.letters_to is not None:
            raise typer.BadParameter(
                "--dead-letters-to excludes --dead-letters and --no-dead-letters"
            )
        return {
            "start": "first" if self.start is None else options.position(self.start, "--start"),
            "max_pending": self.max_pending,
            "dead_letters": self.dead_letters if self.letters_to is None else self.letters_to,
            "ordered": self.ordered,
        }

    def check(self, where: str, group: str, there: Collection[str]) -> None:
        """Refuse to create a group that is there, or to change one that is not."""
        if self.start is not None and group in there:
            command = f"headwater {where.partition(' ')[0]} seek"
            raise InvalidInput(f"{where} has a group {group!r}; use `{command}` to move it")
        if self.start is None and group not in there:
            likely = options.similar(group, there)
            cure = f"did you mean {likely!r}?" if likely else "give --start, to create it"
            raise InvalidInput(f"{where} has no group {group!r}; {cure}")
