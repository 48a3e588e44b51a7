"""The program: its options, its commands and their help, imported when they are named."""

from __future__ import annotations

import copy
import inspect
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_name

from headwater.cli import output
from headwater.cli.options import milliseconds
from headwater.errors import HeadwaterError, InvalidInput
from headwater.kernel import profiles
from headwater.kernel.profiles import CONFIG_VARIABLE, PROFILE_VARIABLE

if TYPE_CHECKING:
    from typer.models import CommandInfo


# An argument at the beginning of a message.
_SUBJECT: Final = re.compile(r"^(the count of )?(\w+)(?= (?:must|needs|is) )")
# Elsewhere, only a name with an underscore is surely not English; in quotes it is the user's.
_NAME: Final = re.compile(r"(?<![\w'\"./:-])[a-z]+(?:_[a-z]+)+(?![\w'\"/])")


def as_typed(text: str, parameters: Iterable[Any]) -> str:
    """Return a message with the options and arguments of a command for those of the library.

    The library names its arguments (``ack_ms must be from 1 to ...``); who typed a command knows
    its options instead (``--ack-ms``).
    """
    spelled = {one.name: spelling(one) for one in parameters}

    def option(name: str) -> str | None:
        likely = [name, name.removesuffix("_ms"), name.removeprefix("write_")]
        if name == "ack_ms":
            # What a channel leases for so long.
            likely.append("lease")
        return next((spelled[one] for one in likely if one in spelled), None)

    def subject(found: re.Match[str]) -> str:
        named = option(found[2])
        return found[0] if named is None else f"{found[1] or ''}{named}"

    text = _SUBJECT.sub(subject, text)
    return _NAME.sub(lambda found: option(found[0]) or found[0], text)


def not_utf8(text: str, parameters: Iterable[Any], given: Mapping[str, Any]) -> str | None:
    """Return that an argument is not UTF-8, when a message is about that; else None.

    Python keeps such bytes of a command line as halves of surrogate pairs. Values of messages may
    have them: they are bytes.
    """
    if "surrogate" not in text:
        return None
    for one in parameters:
        value = given.get(one.name)
        for word in value if isinstance(value, list | tuple) else [value]:
            if isinstance(word, str) and not _is_utf8(word):
                # A URL may have a password.
                shown = "" if "://" in word else f" {word!r}"
                return f"{spelling(one)}{shown} is not UTF-8; encode it so"
    return None


def _is_utf8(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def spelling(parameter: Any) -> str:
    """Return an option or an argument as it is typed: --ack-ms, OFFSET."""
    if parameter.param_type_name == "option":
        return str(parameter.opts[0])
    return str(parameter.metavar).strip("[].")


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
    """Shows nothing behind a flag, and one word behind other options.

    Releases of Typer differ in what they make of a parameter by themselves: a flag may look as if
    it took a value (``--json <bool>``), a required argument like a choice (``{STREAM}``).
    """

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


HELP_OPTIONS = ("-h", "--help")
VERSION_OPTIONS = ("--version", "-v")


class _OneLineErrors(PlainGroup):
    """Prints errors as one line each: what Headwater refuses, exit 1, and bad usage, exit 2.

    Exits with 0 when the reader of standard output has gone, even for a help text.
    """

    def make_context(self, *args: Any, **options: Any) -> Any:
        with _one_line(), output.ending_with_its_reader(), _installing():
            return super().make_context(*args, **options)
        raise typer.Exit

    def invoke(self, ctx: Any) -> Any:
        with _one_line(), output.ending_with_its_reader():
            return super().invoke(ctx)
        raise typer.Exit


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except HeadwaterError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise  # it is the help, which is shown already
        typer.echo(f"error: {usage_text(error)}", err=True)
        raise typer.Exit(2) from None


@contextmanager
def _installing() -> Iterator[None]:
    """Explain that the completion cannot be installed: what else is parsed opens no file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise  # of standard output
        raise InvalidInput(
            f"cannot install the completion: {error.strerror} ({error.filename}); print it with "
            "--show-completion, and put it where your shell finds it"
        ) from None


def bare_root() -> typer.Typer:
    """Return the program `headwater` without any commands."""
    app = typer.Typer(
        cls=_OneLineErrors,
        no_args_is_help=True,
        # Inner commands take this over.
        context_settings={"help_option_names": [*HELP_OPTIONS]},
        # A traceback with variables would show passwords.
        pretty_exceptions_enable=False,
        help="A durable log with consumer groups and replay, on its own server, Redis or Valkey.",
        epilog="Exit codes: 0 done; 1 refused or failed, with the reason on standard error; "
        "2 bad usage; 130 interrupted.",
    )
    app.callback()(_prepare)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        from headwater import __version__

        typer.echo(f"headwater {__version__}")
        raise typer.Exit


def _prepare(
    context: typer.Context,
    store_url: Annotated[  # noqa: ARG001  commands look it up
        str | None,
        typer.Option(
            "--store",
            metavar="URL",
            help="The store; it may also follow the command. Default: $HEADWATER_URL, "
            "else an embedded one in .headwater/.",
            show_default=False,
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            envvar=PROFILE_VARIABLE,
            help="A profile of headwater.toml; options and environment variables override it. "
            "Default: the one that the file names.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar=CONFIG_VARIABLE,
            help="The file with profiles. Default: the nearest headwater.toml, here or above.",
            show_default=False,
        ),
    ] = None,
    version: Annotated[  # noqa: ARG001
        bool,
        typer.Option(*VERSION_OPTIONS, callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Prepare for any command."""
    for stream_out in (sys.stdout, sys.stderr):
        # Data may hold characters that the terminal's encoding has not.
        if isinstance(stream_out, io.TextIOWrapper):
            stream_out.reconfigure(errors="backslashreplace")
    context.obj = profiles.load(profile, config, named_by="--config")
    context.with_resource(profiles.applied(context.obj))


# A group of commands, and a command that is in none, is imported when it is named, or when all are
# asked for: to import and build all takes longer than to run one. The help of the program names
# groups without them.

# Commands that are in no group: each is a function of that name in its module.
_COMMANDS = {
    "demo": "headwater.cli.demo.command",
    "serve": "headwater.cli.serve",
    "console": "headwater.cli.serve",
    "top": "headwater.cli.top",
    "run": "headwater.cli.run",
    "keep": "headwater.cli.upkeep",
    "doctor": "headwater.cli.upkeep",
    "scrub": "headwater.cli.upkeep",
    "repair": "headwater.cli.upkeep",
    "upgrade": "headwater.cli.upkeep",
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
    found: typer.Typer = import_module(f"headwater.cli.groups.{group}").app
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
