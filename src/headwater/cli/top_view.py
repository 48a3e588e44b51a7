"""The pictures of ``headwater top``: the overview as a table, and the ruler of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headwater.cli import output

if TYPE_CHECKING:
    from headwater.metrics.history import Point
    from headwater.metrics.sweeps import StoreSample
    from headwater.queue.types import QueueStats
    from headwater.serve.console.pages.alarms import Alarm
    from headwater.serve.console.pages.lagging import Lagging
    from headwater.serve.console.ruler import RulerPicture, Segment
    from headwater.store.past_checks import PastChecks

# A segment of the ruler as a character and its colour; where several share a cell, the later wins.
MARKS: Final = {
    "evicted": ("░", "dim"),
    "archived": ("▒", "dim"),
    "sealed": ("▓", "cyan"),
    "tail": ("█", "cyan"),
    "done": ("✓", "green"),
    "before": ("-", "dim"),
    "passed": ("-", "dim"),
    "new": ("·", "dim"),
    "pending-1": ("①", "yellow"),
    "pending-2": ("②", "yellow"),
    "pending-3": ("③", "bold yellow"),
    "due": ("↻", "magenta"),
    "missed": ("✗", "bold red"),
    "dead": ("✗", "red"),
}
_ORDER: Final = tuple(MARKS)
_SPARKS: Final = "▁▂▃▄▅▆▇█"
_WIDTH: Final = 1000.0
_ALARMS: Final = 4
_KEYS: Final = "j k move · ⏎ enter · q leave"


class TopPicture(NamedTuple):
    """What the overview shows: the sample, what is made of it, and which row is chosen."""

    where: str
    sample: StoreSample
    store: Point
    alarms: Sequence[Alarm]
    rows: Sequence[Lagging]
    sparks: dict[tuple[str, ...], str]
    chosen: int | None = None
    age_s: float = 0.0
    checks: PastChecks | None = None


def overview_picture(top: TopPicture, height: int = 1000) -> RenderableType:
    """Draw the overview; as many rows as fit into so many lines, around the chosen one."""
    sample, store = top.sample, top.store
    head = Text.assemble(
        ("Headwater ", "bold"),
        (output.readable(top.where), ""),
        (f"   sampled {output.age_text(round(top.age_s * 1000))} ago", "dim"),
    )
    dead = sum(row.dead for row in top.rows)
    facts = Text(
        f"{output.counted(len(sample.streams), 'stream')} · "
        f"{output.counted(len(sample.groups), 'group')} · "
        f"{output.counted(len(sample.queues), 'queue')}   "
        f"in {store.in_per_s:,.0f}/s · out {store.out_per_s:,.0f}/s   "
        f"lag {store.lag:,.0f} · pending {store.pending:,.0f} · {dead:,} dead"
    )
    parts: list[RenderableType] = [head, facts]
    for alarm in top.alarms[:_ALARMS]:
        act = alarm.level == "act"
        words = Text.assemble(
            ("Act  " if act else "Look ", "bold red" if act else "bold yellow"),
            output.readable(alarm.text),
            (f": {alarm.cure}", "dim"),
        )
        words.no_wrap, words.overflow = True, "ellipsis"
        parts.append(words)
    if top.checks is not None and top.checks.verify is not None:
        at = output.time_text(top.checks.verify.at_ms)
        line = Text(f"verify {at}: {top.checks.verify}", "dim", no_wrap=True, overflow="ellipsis")
        parts.append(line)
    if len(top.alarms) > _ALARMS:
        parts.append(Text(f"and {len(top.alarms) - _ALARMS:,} more need attention", "dim"))
    parts.append(Text())
    parts.append(_rows_table(top, max(height - len(parts) - 3, 3)))
    if top.chosen is not None:
        parts.append(Text(_KEYS, "dim"))
    return Group(*parts)


def _rows_table(top: TopPicture, most: int) -> RenderableType:
    if not top.rows:
        return Text("Nothing lags: every message is taken and acknowledged.")
    chosen = top.chosen or 0
    first = max(min(chosen - most // 2, len(top.rows) - most), 0)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("name", no_wrap=True, max_width=28)
    table.add_column("stream", no_wrap=True, max_width=24)
    table.add_column("kind", no_wrap=True)
    for name in ("lag", "behind", "pending", "oldest", "dead"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("last 2 min", no_wrap=True)
    for place, row in enumerate(top.rows[first : first + most], first):
        point = row.point
        table.add_row(
            Text(output.readable(row.name)),
            Text(output.readable(row.where)),
            row.kind,
            f"{point.lag:,.0f}",
            _age(point.lag_s),
            f"{point.pending:,.0f}",
            _age(point.oldest_s),
            Text(f"{row.dead:,}", "yellow" if row.dead else ""),
            top.sparks.get(row.series, ""),
            style="reverse" if place == top.chosen else "",
        )
    return table


def _age(seconds: float) -> str:
    if not seconds:
        return "-"
    for length, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


def spark_text(values: Sequence[float | None], width: int = 20) -> str:
    """Return values as a line of characters; each stands for the highest of its part."""
    if not any(values):
        return ""
    size = max(-(-len(values) // width), 1)
    parts = [values[at : at + size] for at in range(0, len(values), size)]
    heights = [max((one for one in part if one is not None), default=None) for part in parts]
    highest = max(one for one in heights if one is not None) or 1
    return "".join(
        " " if one is None else _SPARKS[min(int(one / highest * len(_SPARKS)), len(_SPARKS) - 1)]
        for one in heights
    )


def strip_text(segments: Sequence[Segment], width: int) -> Text:
    """Return a strip of the ruler as so many characters; what is rarer is drawn over the rest."""
    cells = [""] * width
    for segment in sorted(segments, key=lambda one: _ORDER.index(one.kind)):
        first = min(int(segment.x / _WIDTH * width), width - 1)
        last = max(-(-int(segment.x + segment.width) * width // int(_WIDTH)), first + 1)
        for cell in range(first, min(last, width)):
            cells[cell] = segment.kind
    text = Text(no_wrap=True)
    for kind in cells:
        text.append(*MARKS.get(kind, (" ", "")))
    return text


def ruler_picture(name: str, picture: RulerPicture, width: int) -> RenderableType:
    """Draw a stream with all who read it, in so many columns."""
    cells = max(width - 18 - 44, 20)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, width=16)
    table.add_column(no_wrap=True, width=cells)
    table.add_column(no_wrap=True)
    table.add_row("whole", strip_text(picture.whole, cells), f"1 - {picture.end:,}")
    window = picture.window
    focus = f"{window.first:,} - {window.last:,}"
    table.add_row("readable", strip_text(picture.focus, cells), focus)
    for row in picture.rows:
        words = f"lag {row.lag:,}"
        if row.lag and row.lag_ms:
            words += f" · {_age(row.lag_ms / 1000)} behind"
        if row.info is not None and row.info.pending:
            words += f" · pending {row.info.pending:,}"
        if row.info is not None and row.info.dead:
            words += f" · {row.info.dead:,} dead"
        if row.info is not None and row.info.missed:
            words += f" · {row.info.missed:,} missed"
        who = Text(output.readable(row.name))
        table.add_row(who, strip_text(row.segments, cells), words)
    legend = Text("   ".join(f"{MARKS[kind][0]} {words}" for kind, words in _LEGEND), "dim")
    title = Text(output.readable(name), "bold")
    return Group(title, Text(), table, Text(), legend, Text(_BACK, "dim"))


_LEGEND: Final = (
    ("evicted", "evicted"),
    ("sealed", "sealed"),
    ("tail", "tail"),
    ("before", "before its start, or passed over"),
    ("done", "done"),
    ("pending-1", "pending, by attempt"),
    ("due", "due again"),
    ("new", "not handed out"),
    ("dead", "dead or missed"),
)
_BACK: Final = "esc back · q leave"


def queue_picture(stats: QueueStats) -> RenderableType:
    """Show how a queue stands."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    for name, value in (
        ("ready", f"{stats.ready:,}"),
        ("oldest", _age((stats.oldest_ms or 0) / 1000)),
        ("delayed", f"{stats.delayed:,}"),
        ("with consumers", f"{stats.unacked:,}"),
        ("dead", f"{stats.dead:,}"),
        ("pushed", f"{stats.pushed_per_s:,.1f}/s"),
        ("acked", f"{stats.acked_per_s:,.1f}/s"),
        ("blocked consumers", f"{stats.waiting:,}"),
        ("paused", "yes" if stats.paused else "no"),
    ):
        table.add_row(name, value)
    title = Text(output.readable(stats.name), "bold")
    return Group(title, Text(), table, Text(), Text(_BACK, "dim"))
