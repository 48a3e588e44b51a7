"""What needs Rich: a console that only shows, tables that fit, and the view of ``run``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headwater.cli import output

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult

    from headwater.app.processes import PartTotal


class PlainConsole(Console):
    """Raises BrokenPipeError, which a command turns into its end."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError: Rich would end the program, with exit code 1."""
        raise BrokenPipeError


# Spaces between two columns.
_GAP: Final = 2


class FittedColumn(NamedTuple):
    """A column: ``rank`` 0 is always shown, and of others the highest is left out first.

    A text may be cut to ``least`` cells, with an ellipsis; what has no ``least`` is never cut.
    """

    heading: str
    rank: int = 0
    least: int | None = None
    right: bool = False


class FittedTable:
    """Rows of cells under their columns, drawn as wide as there is room."""

    def __init__(self, columns: Sequence[FittedColumn], *, title: str | None = None) -> None:
        self._columns = columns
        self._title = title
        self._rows: list[tuple[list[Text], str]] = []

    def add_row(self, *cells: str | Text, style: str = "") -> None:
        """Add a row: a cell for each column."""
        texts = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
        self._rows.append((texts, style))

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self._widths(options.max_width)
        table = Table(
            box=None, pad_edge=False, header_style="dim", title=self._title, title_justify="left"
        )
        for place, width in widths.items():
            column = self._columns[place]
            table.add_column(
                column.heading,
                justify="right" if column.right else "left",
                no_wrap=True,
                width=width,
            )
        for texts, style in self._rows:
            table.add_row(*(texts[place] for place in widths), style=style)
        yield table

    def _widths(self, room: int) -> dict[int, int]:
        """Return how wide each column is that is shown."""
        whole = {
            place: max([len(column.heading), *(row[place].cell_len for row, _ in self._rows)])
            for place, column in enumerate(self._columns)
        }
        least = {
            place: min(width, self._columns[place].least or width) for place, width in whole.items()
        }

        def spare() -> int:
            return room - sum(least.values()) - _GAP * (len(least) - 1)

        for place in sorted(whole, key=lambda place: -self._columns[place].rank):
            if spare() < 0 and self._columns[place].rank:
                del least[place]
        for place, width in least.items():
            least[place] = width + min(max(spare(), 0), whole[place] - width)
        return least


# Rates are taken over this long.
_WINDOW_S: Final = 5.0
_PER_SECOND: Final = 4
# What a part died of is shown up to this length.
_REASON: Final = 40
_COLUMNS: Final = (
    FittedColumn("part", least=12),
    FittedColumn("object", rank=5, least=12),
    FittedColumn("runs in", rank=4, right=True),
    FittedColumn("done", right=True),
    FittedColumn("per s", rank=3, right=True),
    FittedColumn("failed", right=True),
    FittedColumn("lag", rank=1, right=True),
    FittedColumn("restarts", rank=2, right=True),
    FittedColumn("state", least=6),
)


class RunView:
    """A table of the parts, drawn again several times a second."""

    def __init__(
        self,
        title: str,
        parts: Callable[[], Sequence[PartTotal]],
        is_stopping: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title = title
        self._parts = parts
        self._is_stopping = is_stopping
        self._clock = clock
        self._looks: deque[tuple[float, Mapping[str, int]]] = deque()

    def picture(self) -> FittedTable:
        """Draw what is known now."""
        parts = self._parts()
        rates = self._rates({part.name: part.done for part in parts})
        table = FittedTable(_COLUMNS, title=self._title)
        for part in parts:
            table.add_row(
                Text(output.readable(part.name), "bold"),
                part.object if part.kind == part.object else f"{part.kind} {part.object}",
                f"{part.running}/{part.processes}",
                f"{part.done:,}",
                f"{rates.get(part.name, 0):,.0f}",
                Text(f"{part.failed:,}", "red" if part.failed else ""),
                "-" if part.lag is None else f"{part.lag:,}",
                Text(str(part.restarts), "yellow" if part.restarts else ""),
                self._state(part),
            )
        return table

    def _state(self, part: PartTotal) -> Text:
        if part.why:
            # The log has all of it.
            why = output.readable(part.why)
            return Text(f"died: {why if len(why) <= _REASON else why[:_REASON] + '…'}", "red")
        if self._is_stopping():
            return Text("stops" if part.processes else "stopped", "yellow")
        if part.processes and part.running == part.processes:
            return Text("runs", "green")
        return Text("starts", "yellow")

    def _rates(self, done: Mapping[str, int]) -> dict[str, float]:
        now = self._clock()
        self._looks.append((now, done))
        while len(self._looks) > 2 and now - self._looks[1][0] >= _WINDOW_S:
            self._looks.popleft()
        since, before = self._looks[0]
        took = now - since
        if took <= 0:
            return {}
        return {name: (count - before.get(name, 0)) / took for name, count in done.items()}


@contextmanager
def shown(view: RunView, console: Console) -> Iterator[Callable[[str], None]]:
    """Show a view while the block runs; yields what prints a line above it."""
    with Live(
        get_renderable=view.picture,
        console=console,
        refresh_per_second=_PER_SECOND,
        redirect_stderr=False,
    ):
        yield lambda line: console.print(Text.from_ansi(line), soft_wrap=True)
