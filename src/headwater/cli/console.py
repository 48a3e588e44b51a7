"""``headwater console``: the console of a store, in a browser, by one command."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater.cli import output
from headwater.cli.options import History, ServedDatabase, ServedFarm, StoreUrl


def console(
    http: Annotated[
        str,
        typer.Option(
            metavar="ADDR", help="Host and port of the loopback; port 0 takes a free one."
        ),
    ] = "127.0.0.1:0",
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse all changes.")] = False,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Print the address, and open no browser.")
    ] = False,
    farm: ServedFarm = None,
    db: ServedDatabase = None,
    history: History = 100,
    store: StoreUrl = None,
) -> None:
    """Show the store in a browser, until Ctrl-C or SIGTERM.

    It serves this machine only, and everybody on it may do everything. `headwater serve` has the
    same pages under /console, with tokens, for other machines.
    """
    from headwater.kernel.packaging import extra_needed

    with extra_needed("serve"):
        from headwater.app.serving import ServedStore, run_server
        from headwater.serve.console.service import HOME
        from headwater.serve.listening import parse_address
    from headwater.app.log_lines import configure
    from headwater.kernel.profiles import store_of

    served = ServedStore(
        store=store_of(store, None),
        http=parse_address(http),
        read_only=read_only,
        farm=farm,
        db=db,
        history=history,
    )

    def ready(url: str) -> None:
        output.say(f"the console is at {url}{HOME}; Ctrl-C ends it")
        if not no_open:
            import webbrowser

            webbrowser.open(url + HOME)

    configure("text", None, {})
    run_server(served, 1, ready)
