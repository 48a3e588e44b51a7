"""The part of the commands that is named: to import and build all takes longer than to run one.

Here is the list of all commands. A group of commands, and a command that is in none, is imported
when it is named, or when all are asked for; the help of the program names groups without them.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import typer
from typer.main import get_command_name

from headwater.cli.help_text import make_plain
from headwater.cli.root import HELP_OPTIONS, VERSION_OPTIONS, bare_root

if TYPE_CHECKING:
    from typer.models import CommandInfo

# Commands that are in no group: each is a function of that name in its module.
_COMMANDS = {
    "demo": "headwater.cli.demo.command",
    "serve": "headwater.cli.serve",
    "console": "headwater.cli.console",
    "top": "headwater.cli.top",
    "run": "headwater.cli.run",
    "keep": "headwater.cli.keep",
    "doctor": "headwater.cli.doctor",
    "scrub": "headwater.cli.scrub",
    "repair": "headwater.cli.scrub",
    "upgrade": "headwater.cli.upgrade",
    "verify": "headwater.cli.verify.command",
}
# Groups of commands, with the help of each: the app of the module of that name.
_GROUPS = {
    "stream": "Write, read and manage streams.",
    "topic": "Write, read and manage topics.",
    "queue": "Push to queues, process and manage them.",
    "ick": "Add to dirty lists, and process them.",
    "timeline": "Timelines on a farm of clusters.",
    "reader": "Manage the readers that retention waits for: SQL consumers, Spark queries, yours.",
    "outbox": "Move what SQL transactions staged to the log.",
    "consumer": "Manage consumers whose position is in SQL.",
    "spark": "Add up, compare, compact and archive streams with Spark.",
    "cron": "Manage timed jobs.",
    "letters": "Redrive or discard dead letters of all groups and queues together.",
    "job": "See and stop the jobs of servers: redrives, discards, replays, scrubs.",
    "store": "Start and stop an embedded store by hand.",
    "token": "Create and remove the tokens that clients of `serve` send.",
}
# Options before the command that take a word.
_TAKING = ("--store", "--profile", "--config")
# Set by the shell when it wants a word completed; there are no other words then.
_COMPLETING = "_HEADWATER_COMPLETE"


def every_command() -> typer.Typer:
    """Return the program with all of its commands."""
    return _program(_COMMANDS, {group: _commands_of(group) for group in _GROUPS})


def narrowed(words: Sequence[str]) -> typer.Typer:
    """Return the program with the command that these words begin with, in its groups.

    Words that ask for its help get every name, but groups without their commands. Others, which
    name no command, get all that there is, so that the error for an unknown name can list them.
    When the shell completes a word, the words before it count.
    """
    completing = _COMPLETING in os.environ and not words
    words = _words_to_complete() if completing else words
    while words and words[0].partition("=")[0] in _TAKING:
        words = words[1 if "=" in words[0] else 2 :]
    name = words[0] if words else ""
    if name in _GROUPS:
        return _program((), {name: _part(_commands_of(name), words[1:])})
    if name in _COMMANDS:
        return _program((name,), {})
    if name in VERSION_OPTIONS:
        return _program((), {})
    if name in HELP_OPTIONS or not (words or completing):
        return _program(_COMMANDS, {group: typer.Typer() for group in _GROUPS})
    return every_command()


def _words_to_complete() -> list[str]:
    """Return the words of a line before the one to complete, or fewer, as the shell gave them."""
    if "COMP_CWORD" in os.environ:
        return os.environ.get("COMP_WORDS", "").split()[1 : int(os.environ["COMP_CWORD"])]
    # Shells differ in whether a space ends it: the last word may be the one to complete.
    return os.environ.get("_TYPER_COMPLETE_ARGS", "").split()[1:-1]


def _program(commands: Iterable[str], groups: Mapping[str, typer.Typer]) -> typer.Typer:
    program = bare_root()
    for name in commands:
        program.command(name)(getattr(import_module(_COMMANDS[name]), name))
    for name, group in groups.items():
        program.add_typer(group, name=name, help=_GROUPS[name], no_args_is_help=True)
    make_plain(program)
    return program


def _commands_of(group: str) -> typer.Typer:
    found: typer.Typer = import_module(f"headwater.cli.{group}").app
    return found


def _part(whole: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """Return the command that the words begin with, in its groups; else all; nothing is changed."""
    name = words[0] if words else ""
    commands = [command for command in whole.registered_commands if name_of(command) == name]
    groups = [copy.copy(group) for group in whole.registered_groups if group.name == name]
    if not commands and not groups:
        return whole
    for group in groups:
        if group.typer_instance is not None:
            group.typer_instance = _part(group.typer_instance, words[1:])
    part = copy.copy(whole)
    part.registered_commands, part.registered_groups = commands, groups
    return part


def name_of(command: CommandInfo) -> str:
    """Return the name by which a command is called."""
    return command.name or get_command_name(getattr(command.callback, "__name__", ""))
