"""``headwater cron``: timed jobs, when they run, what happened to them; pause them, run one now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headwater import views
from headwater.cli import completing, output
from headwater.cli.options import AsJson, Count, StoreUrl, Yes, confirm, connected

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
        views.timed.TimedJobView.of,
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
def pause(name: JobName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Start no run of a job until resume; runs that have started finish."""
    with _jobs(store) as jobs:
        changed = jobs.pause(name)
    _show_state(name, "paused", changed, as_json)


@app.command()
def resume(name: JobName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Run a paused job again; what was due meanwhile is not run."""
    with _jobs(store) as jobs:
        changed = jobs.resume(name)
    _show_state(name, "runs", changed, as_json)


def _show_state(name: str, state: Literal["paused", "runs"], changed: bool, as_json: bool) -> None:
    done = views.timed.TimedJobStateView(job=name, state=state, changed=changed)
    output.answer(done, state if changed else f"{state}, as before", as_json)


@app.command()
def run(name: JobName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Let a runner run a job now, even while it is paused; it is recorded as run by hand."""
    with _jobs(store) as jobs:
        jobs.run(name)
    done = views.timed.TimedJobAskedView(job=name)
    output.answer(done, "asked for a run; a runner begins it within a second or two", as_json)


@app.command()
def delete(
    name: JobName, yes: Yes = False, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Remove a job with its history; a runner that still has it declares it again."""
    with _jobs(store) as jobs:
        jobs.info(name)
        confirm(f"Delete {name} with its history?", yes)
        jobs.delete(name)
    output.answer(views.timed.TimedJobDeletedView(job=name), "deleted", as_json)


@contextmanager
def _jobs(store: str | None) -> Iterator[TimedJobs]:
    from headwater.timed.timed_jobs import TimedJobs

    with connected(store) as hw:
        yield TimedJobs(hw)
