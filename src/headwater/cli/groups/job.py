"""``headwater job``: redrives, replays and scrubs that servers run in the background."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.options import AsJson, StoreUrl, connected
from headwater.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.client import Headwater
    from headwater.store.presence import ServerJob
    from headwater.views.stores import ServerJobView

app = typer.Typer()
# A server that has a job ends it within about a second; one that is gone has it for ten.
_WAITED_S: Final = 15.0
_POLLED_S: Final = 0.2


@app.command("list")
def list_jobs(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show the jobs of servers, those under way first, then the newest that have ended.

    They are begun in the console or over HTTP. A job that is lost has no server at the moment: the
    next one goes on with it.
    """
    with connected(store) as hw:
        found = hw.jobs()
    columns: dict[str, Callable[[ServerJob], object]] = {
        "job": lambda job: job.id,
        "state": lambda job: job.state,
        "done": lambda job: _progress(views.stores.job_view(job)),
        "noted": lambda job: output.time_text(job.noted_ms),
        "by": lambda job: job.who,
        "what": lambda job: views.stores.job_view(job).what,
        "error": lambda job: job.details.get("error"),
    }
    output.show_list(
        found,
        views.stores.job_view,
        columns,
        as_json,
        fold=5,
        nothing="no jobs; the console and POST /v1/letters/jobs begin some",
    )


@app.command("stop")
def stop(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Its id; `headwater job list` has it.")],
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Stop a job: one that waits is undone, one that runs leaves the rest.

    What was done stays done. Waits until the server that has the job has ended it.
    """
    with connected(store) as hw:
        before = _known(hw, job)
        if not hw.stop_job(job):
            raise InvalidInput(f"the job {job} has ended already ({before.state})")
        now = _ended(hw, job)
    view = views.stores.job_view(now)
    if not now.over:
        said = "it will be stopped by the next server that starts: none has it at the moment"
    elif now.state == "stopped" and before.state == "waiting":
        said = "undone: it had not begun, and nothing was changed"
    else:
        said = f"{now.state}: {_progress(view)} done"
    output.answer(view, said, as_json)


def _known(hw: Headwater, job: str) -> ServerJob:
    for one in hw.jobs():
        if one.id == job:
            return one
    raise InvalidInput(f"there is no job {job!r}; `headwater job list` shows those that there are")


def _ended(hw: Headwater, job: str) -> ServerJob:
    """Return a job when it has ended, or when it was waited for in vain."""
    deadline = time.monotonic() + _WAITED_S
    while not (now := _known(hw, job)).over and time.monotonic() < deadline:
        time.sleep(_POLLED_S)
    return now


def _progress(view: ServerJobView) -> str:
    return f"{view.done}" if view.total is None else f"{view.done} of {view.total}"
