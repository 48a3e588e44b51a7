"""``headwater run``: all parts of an application, until SIGTERM or Ctrl-C."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater.cli import output
from headwater.cli.options import StoreUrl


def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:APP", help="Where the App is, as shop.jobs:app.", show_default=False
        ),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PART", help="Run only this part; may be repeated."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--except", metavar="PART", help="Do not run this part; may be repeated."),
    ] = None,
    drain: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long handlers that have begun may take at the end."),
    ] = "30s",
    check: Annotated[
        bool, typer.Option("--check", help="Only check the parts; exit with 2 if one cannot run.")
    ] = False,
    store: StoreUrl = None,
    db: Annotated[
        str | None,
        typer.Option(
            "--db",
            metavar="URL",
            help="The database, instead of that of the App.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run the parts of an application until Ctrl-C or SIGTERM.

    First all parts are checked: what is wrong is listed, and the exit code is 2. A part that dies
    is started again. Either signal lets handlers that have begun end within --drain; what is not
    done is given back at once, and the exit code is 0. A second signal ends that wait.
    """
    from headwater.app.loading import load_app
    from headwater.app.parts import Fault
    from headwater.app.resources import Places
    from headwater.errors import AppRefused, InvalidInput

    try:
        app = load_app(target)
        given = app.places
        app.places = Places(store or given.store, db or given.db, given.profile)
        if check:
            faults = app.check(only=only or (), without=without or ())
            _list(faults)
            raise typer.Exit(2 if any(fault.fatal for fault in faults) else 0)
        app.run(drain=drain, only=only or (), without=without or ())
    except InvalidInput as error:
        _list([Fault("application", str(error))])
        raise typer.Exit(2) from None
    except AppRefused as error:
        for fault in error.faults:
            output.warn(f"error: {fault}")
        raise typer.Exit(2) from None


def _list(faults: object) -> None:
    for fault in faults:  # type: ignore[attr-defined]
        output.warn(f"{'error' if fault.fatal else 'warning'}: {fault}")
