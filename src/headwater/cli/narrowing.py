"""The part of the commands that is named: to build them all takes longer than one needs to run."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

from typer.main import get_command_name

if TYPE_CHECKING:
    from typer import Typer
    from typer.models import CommandInfo


def narrowed(whole: Typer, words: Sequence[str]) -> Typer:
    """Return the command that these words begin with, in its groups; else all there are.

    Words that begin with an option, or with no name of a command, leave all, so that help and the
    error for an unknown name can list them. The whole is not changed.
    """
    name = words[0] if words else ""
    commands = [command for command in whole.registered_commands if name_of(command) == name]
    groups = [copy.copy(group) for group in whole.registered_groups if group.name == name]
    if not commands and not groups:
        return whole
    for group in groups:
        if group.typer_instance is not None:
            group.typer_instance = narrowed(group.typer_instance, words[1:])
    part = copy.copy(whole)
    part.registered_commands, part.registered_groups = commands, groups
    return part


def name_of(command: CommandInfo) -> str:
    """Return the name by which a command is called."""
    return command.name or get_command_name(getattr(command.callback, "__name__", ""))
