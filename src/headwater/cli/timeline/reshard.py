"""``headwater timeline reshard``: move a farm while it is used."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from headwater.cli import output
from headwater.cli.options import AsJson
from headwater.cli.timeline.cli_types import (
    MAX_SIZE,
    TIMEOUT_MS,
    Hash,
    Horizon,
    Instances,
    MaxSize,
    Timeout,
)
from headwater.cli.timeline.walk import progress_bar
from headwater.errors import InvalidInput

if TYPE_CHECKING:
    from headwater.timeline.resharding.resharder import Estimate, Resharder, ReshardResult

T = TypeVar("T")


def reshard(
    instances: Instances,
    to: Annotated[
        str,
        typer.Option(metavar="FARM", help="The farm as it shall be.", show_default=False),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what it would cost.")
    ] = False,
    abort: Annotated[
        bool, typer.Option("--abort", help="Give a move up that has not been switched yet.")
    ] = False,
    rate: Annotated[int, typer.Option(help="Timelines a second at most.")] = 1000,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Note here how far copying is, and go on there next time.",
            show_default=False,
        ),
    ] = None,
    max_size: MaxSize = MAX_SIZE,
    horizon: Horizon = None,
    hash: Hash = "murmur3",
    timeout_ms: Timeout = TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """Move a farm to other instances or another number of clusters, while it is read and written.

    May be stopped or killed at any time; the same command goes on with it. Programs that use the
    farm follow by themselves.
    """
    import asyncio

    from headwater.timeline.resharding.resharder import Resharder

    if dry_run and abort:
        raise InvalidInput("give --dry-run or --abort, not both")

    async def work(act: Callable[[Resharder, asyncio.Event], Awaitable[T]]) -> T:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        with progress_bar() as tell:
            resharder = Resharder(
                instances,
                to,
                rate=rate,
                state=state,
                tell=tell,
                max_size=max_size,
                horizon=horizon,
                hash=hash,
                timeout_ms=timeout_ms,
            )
            try:
                return await act(resharder, stop)
            finally:
                await resharder.close()

    if dry_run:
        _show_estimate(asyncio.run(work(lambda resharder, _: resharder.estimate())), as_json)
    elif abort:
        _show(asyncio.run(work(lambda resharder, _: resharder.abort())), as_json)
    else:
        moved = asyncio.run(work(lambda resharder, stop: resharder.run(stop)))
        if moved is None:
            output.warn("stopped; all is served as before. Run the same command to go on")
            raise typer.Exit(1)
        _show(moved, as_json)


def _show_estimate(estimate: Estimate, as_json: bool) -> None:
    if as_json:
        output.show_json(asdict(estimate))
    else:
        output.say(
            f"about {estimate.timelines} timelines to compare, about {estimate.copied} of them to "
            f"copy ({estimate.share:.0%}), about {estimate.seconds:.0f} s"
        )


def _show(moved: ReshardResult, as_json: bool) -> None:
    if as_json:
        output.show_json({**moved.repaired._asdict(), "cleaned": moved.cleaned, "left": moved.left})
        return
    output.say(
        f"compared {moved.repaired.keys} timelines, copied {moved.repaired.written} elements, "
        f"cleaned {moved.cleaned} timelines away"
    )
    for instance in moved.left:
        output.say(f"{instance} is no longer used; it tells those who ask it where the farm is")
