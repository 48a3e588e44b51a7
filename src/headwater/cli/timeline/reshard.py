"""``headwater timeline reshard``: move a farm while it is used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.option_groups import grouped
from headwater.cli.options import AsJson, DryRun
from headwater.cli.timeline.cli_types import FarmFlags, Rate, StateFile
from headwater.cli.timeline.walk import progress_bar, removed_text
from headwater.errors import InvalidInput

if TYPE_CHECKING:
    from headwater.timeline.resharding import Estimate, Resharder, ReshardResult

T = TypeVar("T")


@grouped
def reshard(
    farm: FarmFlags,
    to: Annotated[
        str,
        typer.Option(metavar="FARM", help="The farm as it will be.", show_default=False),
    ],
    dry_run: DryRun = False,
    abort: Annotated[
        bool, typer.Option("--abort", help="Give up a move that has not been switched yet.")
    ] = False,
    rate: Rate = 1000,
    state: StateFile = None,
    as_json: AsJson = False,
) -> None:
    """Move a farm to other instances or another number of clusters, while it is read and written.

    The command may be stopped or killed at any time; the same command then continues. Programs that
    use the farm follow automatically. The exit code is 1 when it was stopped before its end.
    """
    import asyncio

    from headwater.kernel.stopping import stop_on_signals
    from headwater.timeline.resharding import Resharder

    if dry_run and abort:
        raise InvalidInput("give --dry-run or --abort, not both")

    async def work(act: Callable[[Resharder, asyncio.Event], Awaitable[T]]) -> T:
        stop = asyncio.Event()
        with stop_on_signals(stop.set), progress_bar() as show:
            resharder = Resharder(
                farm.instances, to, rate=rate, state=state, tell=show, **farm.arguments()
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
            output.warn("stopped; all is served as before. Run the same command to continue")
            raise typer.Exit(1)
        _show(moved, as_json)


def _show_estimate(estimate: Estimate, as_json: bool) -> None:
    output.answer(
        views.timelines.EstimateView.of(estimate),
        f"about {estimate.timelines} timelines to compare, about {estimate.copied} of them to "
        f"copy ({estimate.share:.0%}), about {estimate.seconds:.0f} s",
        as_json,
    )


def _show(moved: ReshardResult, as_json: bool) -> None:
    output.answer(
        views.timelines.MovedView.of(moved),
        f"compared {moved.repaired.keys} timelines, copied {moved.repaired.written} elements, "
        f"{removed_text(moved.repaired)}cleaned {moved.cleaned} timelines away",
        as_json,
    )
    if not as_json:
        for instance in moved.left:
            output.say(f"{instance} is no longer used; it tells those who ask it where the farm is")
