"""The root of all commands: what they share, and errors that are printed as one line."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from headwater.cli import output
from headwater.cli.help_text import USAGE_ERROR, PlainGroup, usage_text
from headwater.errors import HeadwaterError, InvalidInput
from headwater.kernel import profiles
from headwater.kernel.profiles import CONFIG_VARIABLE, PROFILE_VARIABLE

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
