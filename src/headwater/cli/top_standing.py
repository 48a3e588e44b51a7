"""How a queue or a dirty list stands, as ``headwater top`` shows it when its row is entered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from headwater.cli import output
from headwater.cli.top_view import BACK, spelled_age

if TYPE_CHECKING:
    from headwater.queue.types import QueueStats
    from headwater.serve.console.pages.lagging import Lagging


def list_picture(row: Lagging) -> RenderableType:
    """Show how a dirty list stands."""
    return _picture(
        row.name,
        ("ready", f"{row.point.lag:,.0f}"),
        ("oldest", spelled_age(row.point.lag_s)),
        ("reserved", f"{row.point.pending:,.0f}"),
    )


def queue_picture(stats: QueueStats) -> RenderableType:
    """Show how a queue stands."""
    return _picture(
        stats.name,
        ("ready", f"{stats.ready:,}"),
        ("oldest", spelled_age((stats.oldest_ms or 0) / 1000)),
        ("delayed", f"{stats.delayed:,}"),
        ("with consumers", f"{stats.unacked:,}"),
        ("dead", f"{stats.dead:,}"),
        ("pushed", f"{stats.pushed_per_s:,.1f}/s"),
        ("acked", f"{stats.acked_per_s:,.1f}/s"),
        ("waiting consumers", f"{stats.waiting:,}"),
        ("paused", "yes" if stats.paused else "no"),
    )


def _picture(name: str, *facts: tuple[str, str]) -> RenderableType:
    columns = (Column(style="dim"), Column(justify="right"))
    table = Table(*columns, box=None, pad_edge=False, show_header=False)
    for words, value in facts:
        table.add_row(words, value)
    return Group(Text(output.readable(name), "bold"), Text(), table, Text(), Text(BACK, "dim"))
