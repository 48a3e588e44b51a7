"""``headwater timeline walk``: repair what no reader asks for."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from headwater.timeline.walker.walker import Walked, WalkProgress


def walk(
    instances: Instances,
    once: Annotated[bool, typer.Option("--once", help="One round, then end.")] = False,
    rate: Annotated[int, typer.Option(help="Timelines a second at most.")] = 1000,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Note here how far it is, and go on there next time.",
            show_default=False,
        ),
    ] = None,
    max_size: MaxSize = MAX_SIZE,
    horizon: Horizon = None,
    hash: Hash = "murmur3",
    timeout_ms: Timeout = TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """Compare all timelines on all clusters, in random order, and repair what differs.

    Runs round after round until Ctrl-C or SIGTERM. With --once it exits with 1 when an instance
    could not be reached, so that some timelines may not have been compared.
    """
    import asyncio

    from headwater.timeline.farm.aio_farm import AsyncFarm
    from headwater.timeline.walker.walker import Walker

    async def run() -> bool:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        farm = AsyncFarm.open(
            instances, max_size=max_size, horizon=horizon, hash=hash, timeout_ms=timeout_ms
        )
        async with farm:
            with progress_bar() as tell:
                walker = Walker(farm, rate=rate, state=state, tell=tell)
                while (walked := await walker.walk(stop)) is not None:
                    _show(walked, as_json)
                    if once:
                        return walked.whole
                    if not walked.repaired.keys:
                        # Nothing there, or nobody: no reason to ask without pause.
                        await asyncio.sleep(1)
        return True

    raise typer.Exit(0 if asyncio.run(run()) else 1)


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

        def tell(progress: WalkProgress) -> None:
            done = progress.repaired
            bar.update(
                task,
                completed=progress.passed,
                total=max(progress.total, progress.passed),
                description=f"{done.keys} timelines, {done.differing} elements differed",
            )

        yield tell


def _show(walked: Walked, as_json: bool) -> None:
    figures = walked.repaired._asdict()
    if as_json:
        output.show_json({**figures, "unscanned": sorted(walked.unscanned), "whole": walked.whole})
    else:
        output.say(
            "compared {keys} timelines with {elements} elements: {differing} differed, {written} "
            "written, {failures} failures".format(**figures)
        )
    for name, error in sorted(walked.unscanned.items()):
        output.warn(f"error: cluster {name} could not be walked: {error}")
