"""``headwater cron``: timed jobs, when they run, what happened to them; pause them, run one now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import completing, output
from headwater.cli.derived import add_commands
from headwater.cli.options import AsJson, Count, StoreUrl, connected
from headwater.doors.catalogue import TIMED_JOB, Named

if TYPE_CHECKING:
    from headwater.timed.operating import TimedJobInfo
    from headwater.timed.states import JobEvent
    from headwater.timed.timed_jobs import TimedJobs

app = typer.Typer()

JobName = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Name of the job.",
        show_default=False,
        autocompletion=completing.timed_jobs,
    ),
]


@app.command("list")
def list_jobs(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List all timed jobs: when each is due next, and how its last run ended."""
    with _jobs(store) as jobs:
        found = jobs.list()
    output.show_list(
        found,
        views.timed.TimedJobInfoView.of,
        {
            "job": lambda job: job.name,
            "when": lambda job: job.when,
            "time zone": lambda job: job.tz,
            "next": lambda job: output.time_text(job.next_ms or 0),
            "last": lambda job: output.time_text(job.last.due_ms) if job.last else None,
            "outcome": lambda job: job.last.outcome if job.last else None,
            "missed": lambda job: job.missed_runs,
            "skipped": lambda job: job.skipped_runs,
            "state": _state,
        },
        as_json,
        nothing="no timed jobs: a job is created when a runner declares it",
        styles={"paused": "yellow", "running": "green", "failed": "red", "lost": "red"},
    )


def _state(job: TimedJobInfo) -> str:
    if job.paused:
        return "paused"
    return "running" if job.running else "waiting"


@app.command()
def history(
    name: JobName, count: Count = 20, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Show what happened to a job last, oldest first."""
    with _jobs(store) as jobs:
        found = jobs.history(name, count)
    output.show_list(
        found,
        views.timed.JobEventView.of,
        {
            "time": lambda event: output.time_text(event.time_ms),
            "what": _what,
            "due": lambda event: output.time_text(event.due_ms),
            "attempt": lambda event: event.attempt or None,
            "took": lambda event: f"{event.took_ms} ms" if event.took_ms else None,
            "by": lambda event: event.by,
            "error": lambda event: event.error,
        },
        as_json,
        nothing="no events asked for",
    )


def _what(event: JobEvent) -> str:
    said: str = event.outcome or event.what
    if event.count and event.what != "missed":
        said = f"{said}, {event.count} missed"
    elif event.count > 1:
        said = f"{event.count} {said}"
    return f"{said}, by hand" if event.by_hand else said


@app.command()
def info(name: JobName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show when a job is due next, what runs or waits, and how its last run ended."""
    with _jobs(store) as jobs:
        job = jobs.info(name)
    if as_json:
        output.show_json(views.timed.TimedJobInfoView.of(job))
        return
    last = job.last
    output.show_facts(
        [
            ("job", job.name),
            ("when", job.when),
            ("time zone", job.tz),
            ("state", _state(job)),
            ("next", output.time_text(job.next_ms or 0)),
            ("running", len(job.running)),
            ("waiting", len(job.waiting)),
            ("last", last and f"{last.outcome}, due {output.time_text(last.due_ms)}"),
            ("error", last and last.error),
            ("missed", f"{job.missed_runs}, policy {job.missed}"),
            ("skipped", f"{job.skipped_runs}, policy {job.overlap}"),
        ]
    )


@contextmanager
def _jobs(store: str | None) -> Iterator[TimedJobs]:
    from headwater.timed.timed_jobs import TimedJobs

    with connected(store) as hw:
        yield TimedJobs(hw)


@contextmanager
def _job(store: str | None, name: str) -> Iterator[Named]:
    with _jobs(store) as jobs:
        yield Named(jobs, name)


add_commands(app, TIMED_JOB, _job)
