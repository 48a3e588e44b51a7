"""What a run shows: a live view on a terminal, else a line a second; a table at the end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.rocket_rides.api import metres
from examples.rocket_rides.audit import Account, Look
from examples.rocket_rides.faults import Fault, Tally
from examples.rocket_rides.model import PILOTS

# A table that goes to a file or a pipe is as wide as what is in it.
_UNBOUNDED = 1_000_000
_NOTES = 6
_WIDTH = 80


@dataclass(frozen=True, slots=True)
class Picture:
    """All that is shown at one moment."""

    phase: str
    elapsed_s: float
    wanted: int
    answered: int = 0
    look: Look = field(default_factory=Look)
    comparisons: int = 0


class View:
    """Shows pictures as they come, and notes of what just happened."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._console = Console(highlight=False)
        if not self._console.is_terminal:
            self._console.width = _UNBOUNDED
        self._picture: Picture | None = None
        self._notes: deque[str] = deque(maxlen=_NOTES)
        self._second = -1
        self._turn = threading.Lock()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show what happens within."""
        if not self._console.is_terminal:
            yield
            return
        with Live(get_renderable=self._draw, console=self._console, refresh_per_second=10):
            yield

    def note(self, text: str) -> None:
        """Show an event."""
        with self._turn:
            elapsed = f"{self._picture.elapsed_s:5.1f} s" if self._picture else "      "
            self._notes.append(f"{elapsed}  {text}")
            if not self._console.is_terminal:
                self._console.print(Text(self._notes[-1]))

    def show(self, picture: Picture) -> None:
        """Show the present state."""
        with self._turn:
            self._picture = picture
            second = int(picture.elapsed_s)
            if not self._console.is_terminal and second > self._second:
                self._second = second
                self._console.print(Text(_line(picture, self._tally.total)))

    def say(self, text: str, style: str = "") -> None:
        """Print a line that stays."""
        self._console.print(Text(text, style), soft_wrap=True)

    def faults(self) -> None:
        """Show the faults so far; the live view has them already."""
        if not self._console.is_terminal:
            self._console.print(_fault_table(self._tally))

    def accounts(self, accounts: Sequence[Account]) -> None:
        """Show everybody's totals side by side; those that differ from the database's stand out."""
        database = next(account for account in accounts if account.who == "database")
        table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
        table.add_column("metres")
        for account in accounts:
            style = "green" if account.agrees(database) else "bold red"
            table.add_column(account.who, justify="right", style=style)
        positions = [account.position for account in accounts]
        table.add_row("at offset", *("" if at is None else str(at) for at in positions))
        table.add_row("rides", *(str(account.sum.rides) for account in accounts))
        for name in PILOTS:
            sums = [(account.pilots or {}).get(name) for account in accounts]
            table.add_row(name, *(metres(each.distance_mm) if each else "" for each in sums))
        table.add_row("all", *(metres(account.sum.distance_mm) for account in accounts))
        self._console.print(table)

    def _draw(self) -> RenderableType:
        picture = self._picture
        if picture is None:
            return Text("starting ...", "dim")
        flow = Table.grid(padding=(0, 2))
        flow.add_column(style="bold")
        for _ in range(3):
            flow.add_column(justify="right")
        look = picture.look
        flow.add_row("rides answered", str(picture.answered))
        flow.add_row("rides staged", str(look.made), f"{look.waiting} waiting")
        flow.add_row("in the log", str(look.streamed))
        for name, standing in look.consumers.items():
            lag = look.streamed - standing.position
            distance = f"{metres(standing.sum.distance_mm)} m"
            flow.add_row(name, str(standing.position), f"lag {lag}", distance)
        flow.add_row("totals compared", str(picture.comparisons))
        whole = Table.grid()
        whole.add_row(
            Text.assemble(("Rocket Rides  ", "bold"), picture.phase, f"  {picture.elapsed_s:.1f} s")
        )
        whole.add_row(ProgressBar(picture.wanted, picture.answered, width=_WIDTH))
        whole.add_row(Panel(flow, title="rides", border_style="dim", width=_WIDTH))
        faults = _fault_table(self._tally)
        whole.add_row(Panel(faults, title="faults on purpose", border_style="dim", width=_WIDTH))
        for note in self._notes:
            whole.add_row(Text(note, "dim"))
        return whole


def _fault_table(tally: Tally) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="bold")
    table.add_column()
    table.add_column(style="dim")
    for fault in Fault:
        struck = tally.of(fault)
        whom = " ".join(struck if len(struck) == 1 else (f"{who} {n}" for who, n in struck.items()))
        table.add_row(str(sum(struck.values())), fault, whom)
    return table


def _line(picture: Picture, faults: int) -> str:
    look = picture.look
    consumers = "  ".join(
        f"{name} {standing.position} (lag {look.streamed - standing.position}, "
        f"{metres(standing.sum.distance_mm)} m)"
        for name, standing in look.consumers.items()
    )
    return (
        f"{picture.elapsed_s:5.1f} s  {picture.phase}: answered {picture.answered}  "
        f"staged {look.made} ({look.waiting} waiting)  log {look.streamed}  {consumers}  "
        f"faults {faults}"
    )
