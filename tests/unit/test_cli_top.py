"""The pictures of ``headwater top`` show what the console shows, in characters."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from headwater.cli.top_view import (
    TopPicture,
    overview_picture,
    ruler_picture,
    spark_text,
    strip_text,
)
from headwater.log.ruler import GroupRuler, PendingRange
from headwater.metrics.history import Point
from headwater.metrics.sweeps import StoreSample
from headwater.serve.console.pages.alarms import alarms_of
from headwater.serve.console.pages.lagging import lagging
from headwater.serve.console.ruler import Segment, draw, window_of
from headwater.views.overview import StreamGroup
from tests.support.samples import group, stream


def text_of(picture: RenderableType, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(picture)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def a_picture(rows: int = 1, chosen: int | None = None) -> TopPicture:
    groups = [StreamGroup("s", group(1, 2, 5, 9000 - n, 8000)) for n in range(rows)]
    sample = StoreSample(100_000, [stream(7)], groups)
    alarms = alarms_of(sample, None, None, None)
    return TopPicture("here", sample, Point(12, 3, 5, 1, 2, 2), alarms, lagging(sample), {}, chosen)


def test_the_overview_names_what_is_wrong_and_what_lags() -> None:
    shown = text_of(overview_picture(a_picture()))
    assert "in 12/s · out 3/s" in shown
    assert "g of s is behind by 5 messages" in shown
    assert "91.0 s" in shown


@pytest.mark.parametrize("chosen", [0, 50, 99])
def test_the_chosen_row_is_on_the_screen(chosen: int) -> None:
    top = a_picture(100, chosen)._replace(alarms=())
    shown = text_of(overview_picture(top, 20))
    assert len(shown.splitlines()) <= 20


def test_names_do_nothing_to_a_terminal() -> None:
    top = a_picture()
    evil = top.rows[0]._replace(name="[bold]\x1b[31mred")
    assert r"[bold]\x1b[31mred" in text_of(overview_picture(top._replace(rows=[evil])))


@pytest.mark.parametrize(
    ("values", "shown"),
    [([0, 1, 2, 4], "▁▃▅█"), ([None, 4], " █"), ([0, 0], ""), ([], ""), ([1] * 40, "█" * 20)],
)
def test_a_spark_line_is_as_high_as_its_values(values: list[float | None], shown: str) -> None:
    assert spark_text(values) == shown


def test_what_is_rare_is_seen_in_a_strip() -> None:
    strip = [
        Segment("done", 0, 600, 1, 600),
        Segment("new", 600, 400, 601, 1000),
        Segment("dead", 300, 2, 301, 301),
    ]
    assert strip_text(strip, 10).plain == "✓✓✓✗✓✓····"


def test_a_ruler_has_a_row_for_everybody_who_reads() -> None:
    info = stream(100)
    facts = group(61, 20, 40, 1, 1)
    ruler = GroupRuler("g", 61, 21, [PendingRange(21, 40, 2, 10**15, 1)], [], [])
    picture = draw(info, window_of(info, None, None), [(facts, ruler)], [], 1000)
    shown = text_of(ruler_picture("s", picture, 122), 122)
    row = next(line for line in shown.splitlines() if line.startswith("g "))
    assert row.split()[1] == "✓" * 12 + "②" * 12 + "✓" * 12 + "·" * 24
    assert "lag 40 · pending 20" in row
