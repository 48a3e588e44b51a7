"""``headwater scrub`` and ``headwater repair``: what is damaged in a store, and its cure."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.options import AsJson, StoreUrl, connected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwater.store.scrubbing import Defect, ScrubProgress, ScrubReport

# The exit code when something is wrong; 1 is for what could not be done at all.
DEFECTS: Final = 3
INTERRUPTED: Final = 130
# How often progress is shown: on a terminal, and in a log.
_TERMINAL_S: Final = 0.2
_LOG_S: Final = 10.0

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Only objects of these names.", show_default=False),
]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help="Only this kind: store, stream, topic, queue, ick or channel; may be repeated.",
        show_default=False,
    ),
]
ReadRate = Annotated[
    float | None,
    typer.Option(
        "--rate", min=0.001, metavar="MB/S", help="Read at most this many megabytes a second."
    ),
]


class ProgressLine:
    """Shows on standard error how far a scrub is: objects, bytes, the rate."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._began = self._shown = time.monotonic()

    def __call__(self, at: ScrubProgress) -> None:
        """Show it, unless something was shown just before."""
        now = time.monotonic()
        if now - self._shown < (_TERMINAL_S if self._terminal else _LOG_S):
            return
        self._shown = now
        rate = output.size_text(round(at.bytes / max(now - self._began, 0.001)))
        size = output.size_text(at.bytes)
        line = f"{at.objects} objects, {size}, {rate}/s, {at.defects} defects: {at.kind} {at.name}"
        if self._terminal:
            typer.echo(f"\r\x1b[K{output.readable(line)[:100]}", err=True, nl=False)
        else:
            output.warn(output.readable(line))

    def end(self) -> None:
        """Clear the line."""
        if self._terminal:
            typer.echo("\r\x1b[K", err=True, nl=False)


def scrub(
    names: Names = None,
    kinds: Kinds = None,
    rate: ReadRate = None,
    archive: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Read the archives at this place instead of the store; names are streams.",
            show_default=False,
        ),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Read the whole store, and report what is damaged or inconsistent.

    It changes nothing, and may run while the store is in use. Progress goes to standard error.
    Ctrl-C ends it with a report of what it has seen. The exit code is 0 when no damage was found, 3
    when something is wrong, 130 when it was interrupted before it found anything, and 1 when it
    could not be done.
    """
    from headwater.kernel.stopping import StopSignal, stop_on_signals

    stop, progress = StopSignal(), ProgressLine()
    paced: Any = {"rate_mb_s": rate, "progress": progress, "stop": stop.is_set}
    with stop_on_signals(stop.set):
        if archive is not None:
            report, where = _scrub_archives(archive, names or (), kinds, paced)
        else:
            with connected(store) as hw:
                chosen: Any = kinds or ()
                report, where = hw.scrub(*(names or ()), kinds=chosen, **paced), hw.store.where
    progress.end()
    show_report(report, where, as_json)


def _scrub_archives(
    place: str, streams: Sequence[str], kinds: object, paced: Any
) -> tuple[ScrubReport, str]:
    from headwater.spark.archives.manifest import absolute_place, safe_place
    from headwater.spark.archives.scrubbing import scrub_archives

    if kinds:
        raise typer.BadParameter("--kind and --archive exclude each other")
    where = absolute_place(place)
    return scrub_archives(where, streams, **paced), safe_place(where)


def show_report(report: ScrubReport, where: str, as_json: bool) -> None:
    """Print what a scrub saw, and end with its exit code."""
    if as_json:
        output.show_json(views.stores.ScrubView.of(report, where))
    else:
        _show(report.defects)
        if report.more:
            output.say(f"and {report.more} more")
        for name in report.unsettled:
            output.say(f"{name}: in use; not all of its counts could be compared")
        seen = f"{report.objects} objects, {output.size_text(report.bytes)}"
        found = len(report.defects) + report.more
        word = "sound" if not found else f"{found} defects"
        output.say(f"{word}: {seen}{'' if report.complete else '; stopped before the end'}")
    _leave(bool(report.defects), report.complete)


def repair(
    names: Names = None,
    kinds: Kinds = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Repair; without it, only show what would be done.")
    ] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Repair what `headwater scrub` reports, as far as possible.

    Without --yes it only shows what it would do. Each repair is one atomic step, made only if the
    object has not changed since it was checked, so the store may be in use. What cannot be repaired
    is shown with what else can be done. The exit code is 0 when nothing is left, else 3.
    """
    from headwater.kernel.stopping import StopSignal, stop_on_signals

    stop, progress = StopSignal(), ProgressLine()
    chosen: Any = kinds or ()
    with stop_on_signals(stop.set), connected(store) as hw:
        report = hw.repair(
            *(names or ()), kinds=chosen, dry_run=not yes, progress=progress, stop=stop.is_set
        )
        where = hw.store.where
    progress.end()
    if as_json:
        output.show_json(views.stores.RepairView.of(report, where, dry_run=not yes))
    else:
        for defect in report.repaired:
            output.say(f"repaired {defect.kind} {defect.name}, {defect.place}: {_deed(defect)}")
        if not yes:
            for defect in report.left:
                if defect.repair is not None:
                    what = f"{defect.kind} {defect.name}, {defect.place}: {_deed(defect)}"
                    output.say(f"would repair {what}")
        rest = [defect for defect in report.left if yes or defect.repair is None]
        _show(rest)
        left = "nothing is wrong" if not report.left else f"{len(report.left)} defects are left"
        more = "; --yes repairs" if not yes and len(rest) < len(report.left) else ""
        output.say(left + more + ("" if report.complete else "; stopped before the end"))
    _leave(bool(report.left), report.complete)


def _deed(defect: Defect) -> str:
    return defect.repair.what if defect.repair else ""


def _show(defects: Sequence[Defect]) -> None:
    if defects:
        output.show_table(
            ["object", "place", "expected", "found", "cure"],
            [(f"{d.kind} {d.name}", d.place, d.expected, d.found, d.cure) for d in defects],
            fold=4,
        )


def _leave(wrong: bool, complete: bool) -> None:
    raise typer.Exit(DEFECTS if wrong else 0 if complete else INTERRUPTED)
