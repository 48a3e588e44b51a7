"""What needs Rich: a console that only shows, and tables that fit into narrow terminals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult


# ── Plain console ─────────────────────────────────────────────────────────────────────────────────
# A console of Rich that reports when its reader has gone, instead of ending the program.


class PlainConsole(Console):
    """Raises BrokenPipeError, which a command turns into its end."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError: Rich would end the program, with exit code 1."""
        raise BrokenPipeError


# ── Fitted table ──────────────────────────────────────────────────────────────────────────────────
# A table that fits into a narrow terminal: it leaves out columns, and never cuts a number.


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
