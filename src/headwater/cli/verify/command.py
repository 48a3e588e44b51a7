"""The command ``headwater verify``: a store of its own, the schedule of kills, and the verdict."""

from __future__ import annotations

import secrets
import shutil
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli import output
from headwater.cli.options import connected, interruptible

if TYPE_CHECKING:
    from headwater.cli.verify.drive import KillPlan, VerifyReport

SHOWN = 20


def verify(
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="Work for this long.")] = 20,
    writers: Annotated[
        int, typer.Option(min=1, max=64, metavar="N", help="N processes write.")
    ] = 3,
    members: Annotated[int, typer.Option(min=1, max=64, metavar="N", help="N processes read.")] = 3,
    kills: Annotated[
        int,
        typer.Option(min=0, max=100_000, metavar="N", help="Kill something N times with kill -9."),
    ] = 20,
    seed: Annotated[
        int | None,
        typer.Option(help="Decides what is killed when. Default: a new seed, which is printed."),
    ] = None,
    note_in: Annotated[
        str | None,
        typer.Option(
            metavar="STORE",
            help="Record the result in this store, for doctor, top and the console.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Kill the server, writers and members with kill -9, and check that nothing was lost.

    It works on an embedded store in a temporary directory, never on one of yours. The exit code is
    0 only if every acknowledged message is in the log once, at its offset, and every group was
    served by the rules.
    """
    from headwater.cli.verify.drive import KillPlan, run_plan
    from headwater.store import embedded, url

    if note_in is not None:
        # Before the work: a mistyped URL would be refused only after it.
        url.resolve(note_in, Path())
    plan = KillPlan(
        seconds, writers, members, kills, secrets.randbits(32) if seed is None else seed
    )
    directory = Path(tempfile.mkdtemp(prefix="headwater-verify-"))
    kept = False
    try:
        with interruptible():
            output.say(f"seed {plan.seed}: {kills} kills in {seconds:g} seconds")
            report = run_plan(plan, directory)
        kept = bool(report.anomalies)
    finally:
        if kept:
            embedded.stop(directory / "store", now=True)
        else:
            embedded.discard(directory / "store")
            shutil.rmtree(directory, ignore_errors=True)
    killed = ", ".join(f"{count} {kind}" for kind, count in sorted(report.killed.items()))
    output.say(f"killed    {killed or 'nothing'}")
    output.say(f"writes    {report.written} acknowledged, {report.unknown} with unknown outcome")
    output.say(f"messages  {report.messages} in the log")
    output.say(f"delivered {report.delivered}, of these {report.again} again; {report.acked} acked")
    if report.anomalies:
        for name, seen in report.anomalies[:SHOWN]:
            output.say(f"{name}: {seen}", "red")
        output.say(
            f"{len(report.anomalies)} anomalies; the store and the notes of all are in {directory}",
            "bold red",
        )
    else:
        output.say("nothing lost, nothing twice, nothing out of order", "green")
    # What was found is printed by now, whatever happens to the note.
    if note_in is not None:
        _note(plan, report, note_in)
    if report.anomalies:
        raise typer.Exit(1)


def _note(plan: KillPlan, report: VerifyReport, store: str) -> None:
    """Note how a verify ended in a store of the user."""
    from headwater.kernel.packaging import __version__
    from headwater.store.doctor import VerifyNote, note_verify

    with connected(store) as hw:
        note = VerifyNote(
            plan.seed,
            plan.seconds,
            report.killed,
            report.messages,
            len(report.anomalies),
            __version__,
            socket.gethostname(),
        )
        hw.store.run(note_verify(note))
        output.say(f"noted in {hw.store.where}")
