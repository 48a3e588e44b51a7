"""The table of commands as the reference shows it."""

from __future__ import annotations

from headwater.serve.resp.commands import RespCommand
from headwater.serve.resp.table import COMMANDS

HEAD = "| command | needs | |\n|---|---|---|\n"


def row(command: RespCommand) -> str:
    """Return the row of a command: how it is written, the scope it needs, what it does."""
    forms = " <br> ".join(
        f"`{command.name} {form}`".replace(" `", "`").replace("|", r"\|")
        for form in command.syntax.split(" | ")
    )
    scope = command.scope.name.lower() if command.scope else "nothing"
    return f"| {forms} | {scope} | {command.summary} |"


def table(group: str) -> str:
    """Return the table of a group of commands."""
    found = dict.fromkeys(COMMANDS.values())
    return HEAD + "\n".join(row(command) for command in found if command.group == group)
