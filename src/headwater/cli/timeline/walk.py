"""``headwater timeline walk``: repair what no reader asks for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.option_groups import grouped
from headwater.cli.options import AsJson
from headwater.cli.timeline.cli_types import FarmFlags, Rate, StateFile

if TYPE_CHECKING:
    import asyncio

    from headwater.timeline.records import Repaired
    from headwater.timeline.walker import Walked, Walker, WalkProgress


@grouped
def walk(
    farm: FarmFlags,
    once: Annotated[bool, typer.Option("--once", help="End after one round.")] = False,
    rate: Rate = 1000,
    state: StateFile = None,
    as_json: AsJson = False,
) -> None:
    """Compare all timelines on all clusters, in random order, and repair what differs.

    It walks round after round until Ctrl-C or SIGTERM, and then exits with 0. With --once the exit
    code is 1 when an instance could not be reached, as some timelines may not have been compared. A
    farm without an available instance is an error in the first round; later rounds wait for it.
    """
    import asyncio

    from headwater.kernel.stopping import stop_on_signals
    from headwater.timeline.farm.aio_farm import AsyncFarm
    from headwater.timeline.walker import Walker

    async def run() -> bool:
        stop = asyncio.Event()
        with stop_on_signals(stop.set), progress_bar() as show:
            async with AsyncFarm.open(farm.instances, **farm.arguments()) as opened:
                walker = Walker(opened, rate=rate, state=state, tell=show)
                async for walked in _rounds(walker, stop):
                    _show(walked, as_json)
                    if once:
                        return walked.whole
        return True

    raise typer.Exit(0 if asyncio.run(run()) else 1)


async def _rounds(walker: Walker, stop: asyncio.Event) -> AsyncIterator[Walked]:
    """Yield what each round did; a farm that dies after the first round is waited for."""
    import asyncio

    from headwater.errors import FarmUnreachable

    begun = waiting = False
    while not stop.is_set():
        try:
            walked = await walker.walk(stop)
        except FarmUnreachable as error:
            if not begun:
                raise
            if not waiting:
                output.warn(f"waiting for the farm: {error}")
            waiting = True
        else:
            if walked is None:
                return
            begun, waiting = True, False
            yield walked
            if walked.repaired.keys:
                continue
        # Nothing is there, or no instance answers: there is no reason to ask without a pause.
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 1)


@contextmanager
def progress_bar() -> Iterator[Callable[[WalkProgress], None]]:
    """Show a bar on a terminal, and nothing elsewhere."""
    from rich import progress as rich

    columns: tuple[Any, ...] = (
        rich.TextColumn("{task.percentage:>3.0f} %"),
        rich.BarColumn(),
        rich.TextColumn("{task.description}"),
        rich.TimeRemainingColumn(),
    )
    console = output.console(stderr=True)
    with rich.Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("0 timelines", total=None)

        def show(progress: WalkProgress) -> None:
            done = progress.repaired
            bar.update(
                task,
                completed=progress.passed,
                total=max(progress.total, progress.passed),
                description=f"{done.keys} timelines, {done.differing} elements differed",
            )

        yield show


def removed_text(done: Repaired) -> str:
    """Return what a repair removed, for a list of counts; nothing when it removed nothing."""
    removed = ((done.trimmed, "trimmed"), (done.forgotten, "forgotten"))
    return "".join(f"{count} {what}, " for count, what in removed if count)


def _show(walked: Walked, as_json: bool) -> None:
    done = walked.repaired
    output.answer(
        views.timelines.WalkedView.of(walked),
        f"compared {done.keys} timelines with {done.elements} elements: {done.differing} differed, "
        f"{done.written} written, {removed_text(done)}{done.failures} failures",
        as_json,
    )
    for name, error in sorted(walked.unscanned.items()):
        output.warn(f"error: cluster {name} could not be walked: {error}")
