"""A chart of the console says the same in its picture, in its table, and in what scripts draw."""

from __future__ import annotations

import html
import json
import re

import pytest

from headwater.serve.console.charts import Chart, ChartLine, charts_json, spark
from headwater.serve.console.render import environment

EVIL = "<script>alert(1)</script>\"'"


def chart(*values: float | None, unit: str = "messages", bars: bool = False) -> Chart:
    return Chart(
        "lag", "Lag", unit, range(60, 60 + len(values)), [ChartLine(EVIL, values)], bars=bars
    )


def page(one: Chart) -> str:
    drawn = environment().get_template("charts.html").module
    return str(drawn.chart(one, "/console"))  # type: ignore[attr-defined]


def test_a_picture_has_a_gap_where_nothing_is_known() -> None:
    assert chart(0, 4, None, 2).drawn == [["0.0,98.0 200.0,2.0", "600.0,50.0"]]
    assert chart(0, 0).drawn == [["0.0,98.0 600.0,98.0"]]
    assert chart(None, None).drawn == [[]]


def test_columns_stand_where_something_was_counted() -> None:
    assert chart(0, 4, None, 2, bars=True).columns == [
        (150.0, 2.0, 135.0, 98.0),
        (450.0, 50.0, 135.0, 50.0),
    ]


@pytest.mark.parametrize(
    ("unit", "value", "words"),
    [
        ("messages", 12345.0, "12,345"),
        ("per s", 0.25, "0.2/s"),
        ("per s", 1204.0, "1,204/s"),
        ("seconds", 3.14, "3.1 s"),
        ("seconds", 600.0, "10 min"),
        ("bytes", 2_500_000.0, "2.5 MB"),
        ("messages", None, "–"),
    ],
)
def test_values_are_spelled_with_their_units(unit: str, value: float | None, words: str) -> None:
    assert chart(unit=unit).spelled(value) == words


@pytest.mark.parametrize("bars", [False, True])
def test_labels_are_escaped_and_data_is_in_an_attribute(bars: bool) -> None:
    drawn = page(chart(1, None, 2, bars=bars))
    assert "<script" not in drawn
    assert not re.search(r"\sstyle=|\son\w+=", drawn)
    (data,) = re.findall(r'data-chart="([^"]*)"', drawn)
    shown = json.loads(html.unescape(data))
    assert shown == charts_json([chart(1, None, 2)])["charts"]["lag"]
    assert shown["lines"] == [{"label": EVIL, "values": [1, None, 2]}]


def test_a_table_says_the_newest_first_in_a_bounded_number_of_rows() -> None:
    told = chart(*range(1000)).told
    assert told[0] == ("00:17:39", ["999"])
    assert len(told) == 20


def test_a_chart_without_points_says_so() -> None:
    assert "No samples yet" in page(chart())


def test_a_spark_line_fits_its_picture() -> None:
    assert spark([0, 10, None, 5]) == "0.0,19.0 33.3,1.0 100.0,10.0"
    assert spark([]) == ""
