"""``headwater outbox``: the streamer, with a live view; and how an outbox stands."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headwater import views
from headwater.cli import output
from headwater.cli.options import AsJson, DatabaseUrl, StoreUrl, connected, grouped
from headwater.cli.run import logged_lines
from headwater.cli.server_options import MonitoringFlags
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.metrics.exposition import Page
    from headwater.outbox import Outbox, Progress, Status, Streamer

app = typer.Typer()

_LOOK_S = 1.0
# The rate is taken over this many looks.
_LOOKS = 5


@app.command()
def create(db: DatabaseUrl) -> None:
    """Create the tables of the outbox where they are missing."""
    from headwater.outbox import Outbox
    from headwater.sql.engines import open_engine

    with open_engine(db, new=True) as engine:
        Outbox(engine).create_all()
    output.say("the tables of the outbox are there")


@app.command()
@grouped
def stream(
    db: DatabaseUrl,
    store: StoreUrl = None,
    id_header: Annotated[
        bool,
        typer.Option(
            "--id-header", help="Give each message the id of its row as the header hw.outbox-id."
        ),
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.1, help="Without a terminal: seconds between two lines.")
    ] = 10.0,
    *,
    monitoring: MonitoringFlags,
) -> None:
    """Move staged rows to the log until Ctrl-C or SIGTERM. One process leads, others stand by.

    It shows rate, backlog and the age of the oldest staged row; without a terminal it prints a line
    when anything has changed. Either signal ends it with exit code 0, after the current batch.
    """
    from headwater.kernel.stopping import stop_on_signals
    from headwater.outbox import Outbox, Streamer
    from headwater.sql.driver_errors import safe_name
    from headwater.sql.engines import open_engine

    with open_engine(db) as engine, connected(store, runs_on=True) as hw:
        outbox = Outbox(engine)
        outbox.status()  # an error that is there from the beginning is shown before anything else
        with (
            Streamer(outbox, hw, id_header=id_header) as streamer,
            stop_on_signals(streamer.stop),
            monitoring.watched(store, partial(_add_metrics, outbox, safe_name(engine))),
            _shown(streamer, outbox, every),
        ):
            streamer.run()
    output.say(f"streamed {streamer.progress.rows} rows")


@app.command()
def status(db: DatabaseUrl, as_json: AsJson = False) -> None:
    """Show what is staged, since when, who streams it, and where the consumers are."""
    from headwater.outbox import Outbox
    from headwater.sql.engines import open_engine

    with open_engine(db) as engine:
        found = Outbox(engine).status()
    if as_json:
        output.show_json(views.outboxes.OutboxView.of(found))
        return
    output.show_facts(
        [
            ("staged", _backlog(found)),
            ("oldest", output.age_text(found.oldest_ms)),
            ("streamer", found.leader or "none"),
            ("rows/s", None if found.rows_per_s is None else f"{found.rows_per_s:.1f}"),
            ("last batch", f"{found.batch}, by {found.producer}" if found.batch else None),
            ("batch idle for", output.age_text(found.batch_idle_ms)),
            ("on its way", found.claimed),
        ]
    )
    if found.checkpoints:
        output.say("")
        output.show_table(
            ["consumer", "stream", "next", "idle for"],
            [
                (c.consumer, c.stream, c.next_offset, output.age_text(c.idle_ms))
                for c in found.checkpoints
            ],
        )


def _add_metrics(outbox: Outbox, database: str, page: Page) -> None:
    from headwater.metrics.sampler import add_outbox

    add_outbox(page, database, outbox.status())


@contextmanager
def _shown(streamer: Streamer, outbox: Outbox, every: float) -> Iterator[None]:
    """Show what the streamer does while it does it, and what it logs."""
    console = output.console()
    screen = _StreamerScreen(streamer, outbox)
    over = threading.Event()
    watcher = threading.Thread(target=screen.watch, args=(over, console, every), daemon=True)
    watcher.start()
    try:
        with logged_lines("headwater.outbox"):
            if console.is_terminal:
                with Live(get_renderable=screen.picture, console=console, refresh_per_second=4):
                    yield
            else:
                yield
    finally:
        over.set()
        watcher.join(5)


class _StreamerScreen:
    """Shows a streamer; it looks at the database once a second, however much is staged."""

    def __init__(self, streamer: Streamer, outbox: Outbox) -> None:
        self._streamer = streamer
        self._outbox = outbox
        self._status: Status | None = None
        self._looks: deque[tuple[float, int]] = deque([(time.monotonic(), 0)], maxlen=_LOOKS)

    def watch(self, over: threading.Event, console: Console, every: float) -> None:
        """Look from time to time until it is over; without a terminal, print what has changed."""
        shown: tuple[object, ...] | None = None
        at = time.monotonic()
        while True:
            self._look()
            now, progress = time.monotonic(), self._streamer.progress
            # The rate falls to nothing by itself; that alone is not worth a line.
            news = (progress, self._status and self._status.backlog)
            if not console.is_terminal and news != shown and (not shown or now - at >= every):
                output.say(self._line(progress))
                shown, at = news, now
            if over.wait(min(_LOOK_S, every)):
                return

    def _look(self) -> None:
        try:
            self._status = self._outbox.status()
        except HeadwaterError:
            self._status = None  # the streamer shows it
        self._looks.append((time.monotonic(), self._streamer.progress.rows))

    def _rate(self) -> int:
        (since, before), (now, rows) = self._looks[0], self._looks[-1]
        return round((rows - before) / (now - since)) if now > since else 0

    def _facts(self, progress: Progress) -> list[tuple[str, str]]:
        return [
            ("streamed", f"{progress.rows} rows"),
            ("rate", f"{self._rate()} rows/s"),
            ("backlog", _backlog(self._status)),
            ("oldest", output.age_text(self._status.oldest_ms if self._status else None) or "-"),
        ]

    def _line(self, progress: Progress) -> str:
        facts = ", ".join(f"{name} {fact}" for name, fact in self._facts(progress))
        return f"{_state(progress)}: {facts}"

    def picture(self) -> Table:
        """Draw what is known of the streamer."""
        progress = self._streamer.progress
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        style = "red" if progress.trouble else "green" if progress.leading else "yellow"
        table.add_row("streamer", Text(_state(progress), style))
        for name, fact in self._facts(progress):
            table.add_row(name, Text(fact))
        if progress.trouble:
            table.add_row("trouble", Text(output.readable(progress.trouble)))
        return table


def _state(progress: Progress) -> str:
    if progress.trouble:
        return "held up"
    return "leads" if progress.leading else "stands by"


def _backlog(status: Status | None) -> str:
    if status is None:
        return "-"
    return f"{status.backlog} rows" if status.exact else f"up to {status.backlog} rows"
