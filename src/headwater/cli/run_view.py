"""The live view of ``headwater run``: rates, lag and failures of each part, as they change."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.live import Live
from rich.table import Table
from rich.text import Text

from headwater.cli import output

if TYPE_CHECKING:
    from rich.console import Console

    from headwater.app.totals import PartTotal

# Rates are taken over this long.
_WINDOW_S: Final = 5.0
_PER_SECOND: Final = 4
# What a part died of is shown up to this length.
_REASON: Final = 40


class RunView:
    """A table of the parts, drawn anew several times a second."""

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

    def picture(self) -> Table:
        """Draw what is known now."""
        parts = self._parts()
        rates = self._rates({part.name: part.done for part in parts})
        table = Table(box=None, pad_edge=False, title=self._title, title_justify="left")
        table.add_column("part", style="bold", no_wrap=True)
        table.add_column("object", overflow="fold")
        table.add_column("runs in", justify="right", no_wrap=True)
        for name in ("done", "per s", "failed", "lag", "restarts"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("state", overflow="fold")
        for part in parts:
            table.add_row(
                part.name,
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
