"""Help that reads well with every release of Typer: usage, flags, and paragraphs.

What releases of Typer make of a parameter by themselves differs: a flag may look as if it took a
value (``--json <bool>``), a required argument like a choice (``{STREAM}``). Here both are spelled
out: nothing behind a flag, ``STREAM [TAG] OFFSET...`` in the usage.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from headwater.cli.options import milliseconds
from headwater.cli.typed_words import as_typed, not_utf8
from headwater.errors import InvalidInput

# What stands behind an option that says it nowhere else: the same word in every command.
_METAVARS = {
    "--batch": "N",
    "--channel": "NAME",
    "--consumer": "NAME",
    "--dedupe": "KEY",
    "--every": "SECONDS",
    "--group": "GROUP",
    "--hash": "NAME",
    "--host": "ADDRESS",
    "--interval": "SECONDS",
    "--job": "NAME",
    "--key": "COLUMN",
    "--offset": "N",
    "--per": "COLUMN",
    "--port": "PORT",
    "--priority": "N",
    "--producer": "NAME",
    "--queue": "NAME",
    "--quorum": "N",
    "--read-strategy": "NAME",
    "--read-token": "TOKEN",
    "--repair-strategy": "NAME",
    "--score": "SCORE",
    "--seconds": "SECONDS",
    "--seed": "N",
    "--separator": "TEXT",
    "--sequence": "N",
    "--stream": "NAME",
    "--table": "TABLE",
    "--tag": "TAG",
    "--token": "TOKEN",
    "--topic": "NAME",
    "--value": "COLUMN",
}


# Every error of how a command was typed. Releases of Typer take it from different places.
USAGE_ERROR: Any = typer.BadParameter.__base__

# What Typer says in the words of the library that checks types for it, and what is meant.
_WORDS = {
    r"(?<=-ms': )Input should be a valid integer, .*": "it must be milliseconds or a span like 30s",
    "a valid integer, unable to parse string as an integer": "a whole number",
    "a valid number, unable to parse string as a number": "a number",
    r"greater than or equal to (\S+)": r"\1 or more",
    r"less than or equal to (\S+)": r"\1 or less",
    "Input should be": "it must be",
    "Value error, ": "",
    # An argument that may be left out.
    r"'\[(\w+)\](\.\.\.)?'": r"'\1'",
}


class _PlainFlags:
    """Shows nothing behind a flag, and one word behind other options."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters; each says by itself what stands behind it."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in found:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
            elif parameter.metavar is None:
                name = parameter.opts[0]
                parameter.metavar = "MS" if name.endswith("-ms") else _METAVARS.get(name)
        return found

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; raises BrokenPipeError when nobody reads it any more."""
        try:
            super().format_help(ctx, formatter)  # type: ignore[misc]
        except SystemExit:
            # Rich ends the program by itself then, with exit code 1.
            raise BrokenPipeError from None


class PlainCommand(_PlainFlags, TyperCommand):
    """A command whose usage names its arguments as pages do."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what was typed; options in milliseconds take spans like 30s too."""
        try:
            return super().parse_args(ctx, _in_ms(args))
        except typer.BadParameter as error:
            option = getattr(error, "param", None)
            if not error.message and option is not None and option.param_type_name == "option":
                # An option that is missing; some give what it wants without its name.
                error.message = f"Write {option.opts[0]} {option.metavar}."
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what the library refuses is told in the words of the command."""
        try:
            return super().invoke(ctx)
        except (InvalidInput, UnicodeEncodeError) as error:
            parameters = self.get_params(ctx)
            typed = not_utf8(str(error), parameters, ctx.params) or as_typed(str(error), parameters)
            if typed == str(error):
                raise
            raise InvalidInput(typed) from error

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage behind the name of the command."""
        arguments = [one for one in self.get_params(ctx) if one.param_type_name == "argument"]
        return ["[OPTIONS]", *map(spelled, arguments)]


class PlainGroup(_PlainFlags, TyperGroup):
    """A group of commands."""


def usage_text(error: Any) -> str:
    """Return what is wrong with a command as it was typed, and where its help is."""
    said = error.format_message().rstrip(".")
    for theirs, ours in _WORDS.items():
        said = re.sub(theirs, ours, said)
    context = getattr(error, "ctx", None)
    return f"{said}; see '{context.command_path} -h'" if context is not None else said


def spelled(argument: Any) -> str:
    """Return an argument as a usage shows it: NAME, [NAME] if optional, NAME... if many."""
    name = str(argument.metavar)
    bare, dots = name.removesuffix("..."), "..." if argument.nargs != 1 else ""
    if not argument.required and not bare.startswith("["):
        bare = f"[{bare}]"
    return bare + dots


def _in_ms(args: list[str]) -> list[str]:
    """Return arguments with spans of time behind options like --ack-ms as milliseconds."""
    found: list[str] = []
    for word in args:
        name, equals, value = word.partition("=")
        if "--" not in found and equals and _is_in_ms(name):
            found.append(f"{name}={milliseconds(value)}")
        elif "--" not in found and found and _is_in_ms(found[-1]):
            found.append(milliseconds(word))
        else:
            found.append(word)
    return found


def _is_in_ms(name: str) -> bool:
    return name.startswith("--") and name.endswith("-ms")


def make_plain(group: typer.Typer) -> None:
    """Give all commands plain help: the terminal decides where the lines of a paragraph break."""
    for command in group.registered_commands:
        command.cls = PlainCommand
        # Python -OO keeps no docstrings.
        said = getattr(command.callback, "__doc__", None) or ""
        paragraphs = inspect.cleandoc(said).split("\n\n")
        command.help = "\n\n".join(part.replace("\n", " ") for part in paragraphs)
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            inner.cls = PlainGroup
            make_plain(inner.typer_instance)
