"""The pictures of ``headwater top`` show what the console shows, in characters."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from headwater.cli.top_screen import (
    TopPicture,
    overview_picture,
    place_kept,
    ruler_picture,
    spark_text,
    strip_text,
)
from headwater.log.inspecting import GroupRuler, PendingRange
from headwater.metrics.alarms import AlarmFacts, alarms_of
from headwater.metrics.history import Point
from headwater.metrics.sweeps import StoreSample
from headwater.serve.console.pages.lagging import gathered, lagging
from headwater.serve.console.ruler import Segment, draw, window_of
from headwater.store.doctor import DoctorReport, Finding
from headwater.views.overview import StreamGroup
from tests.support.samples import group, stream


def text_of(picture: RenderableType, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(picture)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def a_picture(rows: int = 1, chosen: int | None = None) -> TopPicture:
    groups = [StreamGroup("s", group(1, 2, 5, 9000 - n, 8000)) for n in range(rows)]
    sample = StoreSample(100_000, [stream(7)], groups)
    alarms = alarms_of(AlarmFacts(sample))
    return TopPicture("here", sample, Point(12, 3, 5, 1, 2, 2), alarms, lagging(sample), {}, chosen)


def test_the_overview_names_what_is_wrong_and_what_lags() -> None:
    shown = text_of(overview_picture(a_picture()))
    assert "in 12/s · out 3/s" in shown
    assert "g of s is behind by 5 messages" in shown
    assert "91 s" in shown


def test_the_overview_says_what_a_crash_does_to_messages() -> None:
    ok = Finding("persistence", "appendonly yes, appendfsync always", "ok")
    weak = Finding("persistence", "fsync off; a crash loses messages", "fail", "set appendfsync")
    for finding, said in (
        (ok, "survives kill -9 and power loss"),
        (weak, "a crash loses messages"),
    ):
        report = DoctorReport("here", (finding,), "")
        shown = text_of(overview_picture(a_picture()._replace(report=report)))
        assert f"durability {said}" in shown


def test_alarms_of_one_kind_are_one_line_when_they_are_many() -> None:
    groups = [StreamGroup(f"s{n}", group(1, 2, 5, 9000, 8000)) for n in range(30)]
    groups[0] = groups[0]._replace(group=replace(groups[0].group, missed=7))
    sample = StoreSample(100_000, [], groups)
    found = gathered(alarms_of(AlarmFacts(sample)))
    assert [one.text for one in found] == [
        "Group g of s0 missed 7 messages: evicted before it read them",
        "30 groups have no member, and 150 messages wait for them",
    ]
    assert len(found[1].members) == 30
    few = gathered(alarms_of(AlarmFacts(replace(sample, groups=groups[:3]))))
    assert len(few) == 4, "three of a kind are told apart"
    shown = text_of(overview_picture(a_picture()._replace(alarms=found)))
    assert "30 groups have no member" in shown


@pytest.mark.parametrize(("width", "height"), [(200, 50), (120, 40), (80, 24), (60, 15), (50, 15)])
def test_a_narrow_overview_leaves_out_columns_and_cuts_no_number(width: int, height: int) -> None:
    groups = [StreamGroup("orders.of.europe", group(1, 1_234_567, 98_765_432, 9000, 8000))] * 9
    sample = StoreSample(100_000, [stream(7)], groups)
    alarms = alarms_of(AlarmFacts(sample))
    where = "embedded:///home/somebody/projects/shop/backend/.headwater"
    rows = [row._replace(name="send_confirmation_mail", dead=4321) for row in lagging(sample)]
    top = TopPicture(where, sample, Point(12, 3, 98_765_432, 1_234_567), alarms, rows, {}, 0)
    lines = text_of(overview_picture(top, width, height), width).splitlines()
    assert len(lines) <= height
    assert "/.headwater   sampled 0.0 s ago" in lines[0]
    heading = next(line for line in lines if line.startswith("name ")).split()
    chosen = next(line for line in lines if line.startswith("send_con")).split()
    columns = ["name", "stream", "kind", "lag", "behind", "pending", "oldest", "dead"]
    assert heading == {
        60: ["name", "stream", "lag", "behind", "pending", "dead"],
        50: ["name", "lag", "pending", "dead"],
    }.get(width, columns if width == 80 else [*columns, "last", "2", "min"])
    assert {"98,765,432", "1,234,567", "4,321"} <= set(chosen)
    # Whatever is cut ends between two words: each number is as it was.
    whole = set(text_of(overview_picture(top, 999), 999).split())
    told = [line for line in lines if not line.startswith(("and ", "j k"))]
    shown = {word.rstrip("…") for line in told for word in line.split()}
    assert {word for word in shown if word[0].isdigit()} <= whole


@pytest.mark.parametrize("chosen", [0, 50, 99])
def test_the_chosen_row_is_on_the_screen(chosen: int) -> None:
    top = a_picture(100, chosen)._replace(alarms=())
    shown = text_of(overview_picture(top, height=20))
    assert len(shown.splitlines()) <= 20
    told = re.search(r"rows (\d+) to (\d+) of 100\n", shown)
    assert told
    assert int(told[1]) <= chosen + 1 <= int(told[2])


def test_the_chosen_object_stays_chosen_when_rows_change_their_order() -> None:
    rows = [
        one._replace(series=("group", "s", f"g{n}")) for n in range(3) for one in a_picture().rows
    ]
    assert place_kept(rows, 0, rows[::-1]) == 2
    assert place_kept(rows, 1, [rows[2], rows[0]]) == 1, "the same place where it is gone"
    assert place_kept([], 0, rows) == 0


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
    ruler = GroupRuler("g", 61, 21, [PendingRange(21, 40, 2, 10**15, 1)], [], [], start=1)
    picture = draw(info, window_of(info, None, None), [(facts, ruler)], [], 1000)
    shown = text_of(ruler_picture(info, 1204.4, picture, 122), 122)
    assert shown.splitlines()[1].endswith("B each · 1,204/s")
    row = next(line for line in shown.splitlines() if line.startswith("g "))
    assert row.split()[1] == "✓" * 12 + "②" * 12 + "✓" * 12 + "·" * 24
    assert "lag 40 (1.0 s) · pending 20" in row
    narrow = text_of(ruler_picture(info, None, picture, 50), 50).splitlines()
    place = narrow.index("g  lag 40 (1.0 s) · pending 20")
    assert narrow[place + 1] == "✓" * 10 + "②" * 10 + "✓" * 10 + "·" * 20
