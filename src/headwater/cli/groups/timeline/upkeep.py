"""``headwater timeline``: walk, compare, move and rebuild a farm of timelines."""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headwater import views
from headwater.cli import completing, output
from headwater.cli.groups.timeline.records import (
    FarmFlags,
    Rate,
    StateFile,
    WritingFarmFlags,
    counts_text,
)
from headwater.cli.options import AsJson, DryRun, StoreUrl, connected, grouped, known
from headwater.cli.upkeep import ProgressLine, ReadRate, show_report
from headwater.errors import HeadwaterError, InvalidInput

if TYPE_CHECKING:
    import asyncio

    from headwater.log.stream import Stream
    from headwater.log.types import Message
    from headwater.timeline import Farm, Written
    from headwater.timeline.farm.aio_farm import AsyncFarm
    from headwater.timeline.feeding import Operation
    from headwater.timeline.records import Repaired
    from headwater.timeline.resharding import Estimate, Resharder, ReshardResult
    from headwater.timeline.walker import Walked, Walker, WalkNote, WalkProgress

    Read = Callable[[Message], Iterable[Operation]]


# ── Walks ─────────────────────────────────────────────────────────────────────────────────────────


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
    from headwater.timeline.walker import Walker

    async def run(farm: AsyncFarm) -> bool:
        stop = asyncio.Event()
        with stop_on_signals(stop.set), _progress_bar() as show:
            walker = Walker(farm, rate=rate, state=state, tell=show)
            async for walked in _rounds(walker, stop):
                _show_walk(walked, as_json)
                if once:
                    return walked.whole
        return True

    raise typer.Exit(0 if farm.run(run) else 1)


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
def _progress_bar() -> Iterator[Callable[[WalkProgress], None]]:
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


def _removed_text(done: Repaired) -> str:
    """Return what a repair removed, for a list of counts; nothing when it removed nothing."""
    removed = ((done.trimmed, "trimmed"), (done.forgotten, "forgotten"))
    return "".join(f"{count} {what}, " for count, what in removed if count)


def _show_walk(walked: Walked, as_json: bool) -> None:
    done = walked.repaired
    output.answer(
        views.timelines.WalkedView.of(done, unscanned=sorted(walked.unscanned), whole=walked.whole),
        f"compared {done.keys} timelines with {done.elements} elements: {done.differing} differed, "
        f"{done.written} written, {_removed_text(done)}{done.failures} failures",
        as_json,
    )
    for name, error in sorted(walked.unscanned.items()):
        output.warn(f"error: cluster {name} could not be walked: {error}")


@grouped
def walks(farm: FarmFlags, as_json: AsJson = False) -> None:
    """Show walks and moves of a farm: who runs them, how far they are, what the last one did.

    Walks and moves record their progress on the farm, where it can be seen for thirty days.
    """
    from headwater.timeline.walker import read_notes

    async def look(farm: AsyncFarm) -> list[WalkNote]:
        await farm.follow()
        return await read_notes(farm.clusters)

    output.show_list(
        farm.run(look),
        views.timelines.WalkNoteView.of,
        {
            "kind": lambda note: note.kind,
            "who": lambda note: note.who,
            "state": lambda note: note.state,
            "began": lambda note: output.time_text(note.began_ms),
            "noted": lambda note: output.time_text(note.noted_ms),
            "passed": lambda note: f"{note.passed} of {note.total}",
            "per s": lambda note: round(note.per_s, 1),
            "left": lambda note: output.age_text(
                None if note.left_s is None else round(note.left_s * 1000)
            ),
            "differed": lambda note: note.repaired.differing,
            "written": lambda note: note.repaired.written,
            "failures": lambda note: note.repaired.failures,
        },
        as_json,
        nothing="no walk was noted in the last thirty days: headwater timeline walk --once",
        styles={"failed": "red", "running": "green"},
    )


# ── Scrubs ────────────────────────────────────────────────────────────────────────────────────────


@grouped
def scrub(farm: FarmFlags, rate: ReadRate = None, as_json: AsJson = False) -> None:
    """Read all timelines on all clusters, and report what is damaged, misplaced or differs.

    It changes nothing, and may run while the farm is in use; headwater timeline walk repairs.
    Progress goes to standard error. Ctrl-C ends it with a report of what it has seen. The exit code
    is 0 when no damage was found, 3 when something is wrong, 130 when it was interrupted before it
    found anything, and 1 when an instance could not be read.
    """
    from headwater.kernel.stopping import StopSignal, stop_on_signals
    from headwater.timeline.layout import safe_farm

    stop, progress = StopSignal(), ProgressLine()
    with stop_on_signals(stop.set), farm.open() as opened:
        report = opened.scrub(rate_mb_s=rate, progress=progress, stop=stop.is_set)
    progress.end()
    show_report(report, safe_farm(farm.instances), as_json)


# ── Moves ─────────────────────────────────────────────────────────────────────────────────────────


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
        with stop_on_signals(stop.set), _progress_bar() as show:
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
        _show_moved(asyncio.run(work(lambda resharder, _: resharder.abort())), as_json)
    else:
        moved = asyncio.run(work(lambda resharder, stop: resharder.run(stop)))
        if moved is None:
            output.warn("stopped; all is served as before. Run the same command to continue")
            raise typer.Exit(1)
        _show_moved(moved, as_json)


def _show_estimate(estimate: Estimate, as_json: bool) -> None:
    output.answer(
        views.timelines.EstimateView.of(estimate),
        f"about {estimate.timelines} timelines to compare, about {estimate.copied} of them to "
        f"copy ({estimate.share:.0%}), about {estimate.seconds:.0f} s",
        as_json,
    )


def _show_moved(moved: ReshardResult, as_json: bool) -> None:
    output.answer(
        views.timelines.MovedView.of(moved.repaired, cleaned=moved.cleaned, left=moved.left),
        f"compared {moved.repaired.keys} timelines, copied {moved.repaired.written} elements, "
        f"{_removed_text(moved.repaired)}cleaned {moved.cleaned} timelines away",
        as_json,
    )
    if not as_json:
        for instance in moved.left:
            output.say(f"{instance} is no longer used; it tells those who ask it where the farm is")


# ── Rebuilds ──────────────────────────────────────────────────────────────────────────────────────


_BATCH = 1000


@grouped
def rebuild(
    farm: WritingFarmFlags,
    streams: Annotated[
        list[str],
        typer.Argument(
            metavar="STREAM...",
            help="Streams to read.",
            show_default=False,
            autocompletion=completing.streams,
        ),
    ],
    start: Annotated[
        int, typer.Option("--from", min=1, metavar="OFFSET", help="The first offset to read.")
    ] = 1,
    reader: Annotated[
        str | None,
        typer.Option(
            "--reader",
            metavar="MODULE:FUNCTION",
            help="The function that turns a message into operations. Default: the value is JSON.",
            show_default=False,
        ),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write the operations of all messages of streams to a farm, up to their current end.

    Operations that the farm has already change nothing, so the command may be run on a farm in
    use, and more than once.
    """
    read = _reader(reader)
    with connected(store) as hw, farm.open() as opened:
        for stream in [known(hw, name) for name in streams]:
            _show_rebuilt(stream.name, *_rebuild(stream, start, read, opened), as_json)


def _rebuild(stream: Stream, start: int, read: Read, farm: Farm) -> tuple[int, Written]:
    """Apply one stream; prints the offset to continue from when it fails."""
    from headwater.timeline import Written
    from headwater.timeline.feeding import apply

    end, at, seen, done = stream.info().last, start, 0, Written()
    try:
        while at <= end:
            passage = stream.read_from(at, min(_BATCH, end + 1 - at))
            if passage.gap:
                gap = output.range_text(*passage.gap)
                output.warn(f"offsets {gap} of {stream.name} were evicted; what they held is lost")
            messages = [message for message in passage.messages if message.offset <= end]
            done = done.plus(apply(farm, (op for message in messages for op in read(message))))
            seen += len(messages)
            at = passage.next
    except HeadwaterError:
        output.warn(f"stopped at offset {at} of {stream.name}; continue there with --from {at}")
        raise
    return seen, done


def _reader(name: str | None) -> Read:
    from headwater.timeline.feeding import operations

    if name is None:
        return lambda message: operations(message.value)
    module, colon, function = name.partition(":")
    if not colon:
        raise InvalidInput(f"{name!r} is not of the form MODULE:FUNCTION")
    # As python -m does, so that modules in the current directory are found.
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"{name} cannot be used: {error}") from error
    return found  # type: ignore[no-any-return]


def _show_rebuilt(stream: str, seen: int, done: Written, as_json: bool) -> None:
    output.answer(
        views.timelines.RebuiltView.of(done, stream=stream, messages=seen),
        f"{stream}: {seen} messages, {counts_text(done) or 'nothing new'}",
        as_json,
    )
