"""``headwater top``: the overview of a store in a terminal, with rulers in characters."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headwater.cli import output
from headwater.cli.options import History, LookedAtDatabase, StoreUrl


def top(
    once: Annotated[
        bool, typer.Option("--once", help="Print it once; so it is where this is no terminal.")
    ] = False,
    history: History = 100,
    db: LookedAtDatabase = None,
    store: StoreUrl = None,
) -> None:
    """Show what the store does, renewed every second: alarms, rates, what lags.

    j and k choose a row, Enter shows its stream with all who read it, or its queue; q leaves.
    """
    import asyncio

    from headwater.cli.top_screen import TopScreen
    from headwater.kernel.profiles import store_of

    live = not once and sys.stdin.isatty() and output.console().is_terminal
    asyncio.run(TopScreen(store_of(store, None), history, db).run(live=live))
