"""What producers wrote is shown exactly: nothing is hidden, turned round, or cut without a word."""

from __future__ import annotations

import hashlib
import html
import json
import re
import time
import tomllib
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.kernel.headers import Headers
from headwater.log.inspecting import DeadOffsets, GroupRuler, PendingRange
from headwater.log.types import (
    DecodedMessage,
    DecodedTopicMessage,
    GroupInfo,
    HeadedMessage,
    HeadedTopicMessage,
    Message,
    Retention,
    StreamInfo,
)
from headwater.queue.types import DecodedDelivery, HeadedDelivery
from headwater.serve.console.charts import Chart, ChartLine, charts_json, spark
from headwater.serve.console.render import age, environment
from headwater.serve.console.ruler import (
    LEAST,
    WIDTH,
    OutsideReader,
    Stretch,
    draw,
    moment_of,
    steps_of,
    window_of,
)
from headwater.serve.console.values import line, payload, visible


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (b'{"b": 1, "a": [true]}', "json", '{\n  "b": 1,\n  "a": [\n    true\n  ]\n}'),
        (b"first line\nsecond\tline\r\n", "text", "first line\nsecond\tline\n"),
        ("a family: \U0001f468\u200d\U0001f469".encode(), "text", None),
        ("\u202eevil\u200b".encode(), "text", "\\u202eevil\\u200b"),
        ('{"a": "\u202e"}'.encode(), "json", '{\n  "a": "\\u202e"\n}'),
        (b"\x1b[31mred", "hex", None),
        (b"caf\xe9", "hex", None),
        (b"", "text", ""),
        (b"[" * 5000 + b"]" * 5000, "text", None),
    ],
)
def test_a_value_is_text_where_it_can_be_read(value: bytes, kind: str, text: str | None) -> None:
    shown = payload(value)
    assert shown["kind"] == kind
    if text is not None:
        assert shown["text"] == text


def test_a_long_text_that_is_cut_within_a_character_is_text() -> None:
    shown = payload(("x" + "é" * 4000).encode())
    assert shown["kind"] == "text"
    assert shown["rest"] == "3,905 more bytes"


def test_json_that_is_cut_says_so() -> None:
    whole = payload(json.dumps(list(range(500))).encode())
    assert whole["rest"] == ""
    assert whole["text"].endswith("\n]")
    assert payload(json.dumps(list(range(3000))).encode())["rest"].endswith(" more characters")


def test_a_page_of_large_values_is_made_quickly() -> None:
    value = json.dumps([{"fare": n, "place": "x" * 20} for n in range(15_000)]).encode()
    began = time.process_time()
    for _ in range(50):
        assert payload(value)["kind"] == "json"
    assert time.process_time() - began < 3


def test_what_cannot_be_seen_is_spelled() -> None:
    assert visible("a\u202eb\u200bc\x00\nd") == r"a\u202eb\u200bc\x00\nd"
    assert visible("Köln \xa0 مرحبا 東京 \U0001f695") == "Köln \xa0 مرحبا 東京 \U0001f695"
    assert line("x" * 121) == "x" * 119 + "…"
    assert line("x" * 120) == "x" * 120


@pytest.mark.parametrize("text", ["1000", "tomorrow", "", "2h30", "20261117", "9" * 30 + "d"])
def test_what_is_no_time_is_none(text: str) -> None:
    assert moment_of(text) is None


def test_times_and_steps_are_read_as_people_type_them() -> None:
    assert steps_of("+1000") == 1000
    assert steps_of("−5") == steps_of("-5") == -5
    assert steps_of("5") is steps_of("-") is steps_of("") is None
    assert moment_of("2026-11-17T14:00") == moment_of("2026-11-17T15:00+01:00")
    hour = moment_of("1h")
    assert hour is not None
    assert abs(time.time() - 3600 - hour.timestamp()) < 60


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "–"),
        (0, "0 s"),
        (40, "40 ms"),
        (9_940, "9.9 s"),
        (9_960, "10 s"),
        (119_000, "119 s"),
        (120_000, "2 min"),
        (172_800_000, "2 d"),
    ],
)
def test_an_age_has_one_spelling(ms: float | None, text: str) -> None:
    assert age(ms) == text


# ── What the console takes from others is as it was published, and nothing else is sent ──────────


STATIC = files("headwater.serve.console").joinpath("static")
OWN = {"console.css", "console.js", "charts.js", "language.js", "stream.js", "mark.svg"}


def test_vendored_files_have_their_digests() -> None:
    vendored = tomllib.loads(STATIC.joinpath("VENDORED.toml").read_text())
    found = {one["file"]: one for one in vendored.values()}
    assert {file.name for file in STATIC.iterdir()} == {*found, *OWN, "VENDORED.toml"}
    for name, one in found.items():
        assert hashlib.sha256(STATIC.joinpath(name).read_bytes()).hexdigest() == one["sha256"]
        assert one["version"]
        assert one["licence"]


def test_pages_ask_nobody_else() -> None:
    for template in Path(str(STATIC)).parent.joinpath("templates").rglob("*.html"):
        for target in re.findall(r'\b(?:href|src|action)="([^"]*)', template.read_text()):
            assert re.match(r"#|\{\{ (root|api|here|back|link|own) \}\}", target), (
                template.name,
                target,
            )
    for name in OWN - {"mark.svg"}:
        assert not re.search(
            r"https?:|url\(|@import|import\(", STATIC.joinpath(name).read_text()
        ), name


# A chart of the console says the same in its picture, in its table, and in what scripts draw.


EVIL = "<script>alert(1)</script>\"'"


def chart(*values: float | None, unit: str = "messages") -> Chart:
    return Chart("lag", "Lag", unit, range(60, 60 + len(values)), [ChartLine(EVIL, values)])


def page(one: Chart) -> str:
    drawn = environment().get_template("shared/charts.html").module
    return str(drawn.chart(one, "/console"))  # type: ignore[attr-defined]


def test_a_picture_has_a_gap_where_nothing_is_known() -> None:
    assert chart(0, 4, None, 2).drawn == [["0.0,98.0 200.0,2.0", "600.0,50.0"]]
    assert chart(0, 0).drawn == [["0.0,98.0 600.0,98.0"]]
    assert chart(None, None).drawn == [[]]


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


def test_labels_are_escaped_and_data_is_in_an_attribute() -> None:
    drawn = page(chart(1, None, 2))
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


# ── The picture of a ruler has every offset in its place, whatever the length of the stream ──────


STREAM = StreamInfo(
    name="s",
    first=1,
    last=1000,
    length=1000,
    bytes=0,
    nodes=0,
    sealed=900,
    created_ms=1,
    last_time_ms=1,
    retention=Retention(),
    auto_compact=False,
    readers={},
    groups=(),
    slowest=None,
    slowest_next=None,
    slowest_idle_ms=None,
    abandoned=0,
    tail_bytes=0,
    reader_lag_ms={},
    reader_idle_ms={},
)
GROUP = GroupInfo(
    name="g",
    next=500,
    ack_offset=400,
    pending=20,
    lag=501,
    missed=0,
    gaps=(),
    expired=0,
    dead=1,
    max_pending=None,
    dead_letters=None,
    waiting=0,
    members={},
    created_ms=1,
    seen_ms=1,
    abandoned=False,
    new_since_ms=None,
    pending_since_ms=None,
    pending_ranges=1,
    due=0,
    redelivered=0,
)


@given(
    st.integers(1, 10**12), st.integers(1, 10**12), st.integers(1, 10**12), st.integers(1, 10**12)
)
def test_every_segment_lies_in_the_picture(first: int, last: int, low: int, high: int) -> None:
    first, last = sorted((first, last))
    low, high = sorted((low, high))
    info = replace(STREAM, first=first, last=last, sealed=(first + last) // 2)
    ruler = GroupRuler(
        name="g",
        next=low,
        ack_offset=first,
        pending=[PendingRange(low, high, 5, 100, 1), PendingRange(high, high, 1, 300, 7)],
        dead=[DeadOffsets(low, low, 3)],
        gaps=[(first, low)],
    )
    window = window_of(info, low, high)
    picture = draw(info, window, [(GROUP, ruler)], [OutsideReader("archive", "r", high)], 200)
    rows = [picture.whole, picture.focus, [picture.mark], *(row.segments for row in picture.rows)]
    for segments in rows:
        for one in segments:
            assert one.x >= 0
            assert one.width >= LEAST
            assert one.x + one.width <= WIDTH + 0.02
    assert {one.kind for one in picture.focus} <= {"archived", "evicted", "sealed", "tail"}


def test_a_row_shows_what_is_done_pending_due_dead_and_new() -> None:
    ruler = GroupRuler(
        name="g",
        next=500,
        ack_offset=400,
        pending=[PendingRange(400, 409, 1, 300, 1), PendingRange(420, 420, 2, 100, 1)],
        dead=[DeadOffsets(450, 450, 5)],
        gaps=[(1, 10)],
        start=100,
        jumps=[(200, 300)],
    )
    picture = draw(STREAM, Stretch(1, 1000), [(GROUP, ruler)], [], 200)
    found = {(one.kind, one.first, one.last) for one in picture.rows[0].segments}
    assert found == {
        ("before", 1, 99),
        ("done", 100, 499),
        ("passed", 200, 300),
        ("new", 500, 1000),
        ("missed", 1, 10),
        ("pending-1", 400, 409),
        ("due", 420, 420),
        ("dead", 450, 450),
    }
    drawn = {kind for kind, _, _ in found}
    assert picture.kinds - drawn <= {"archived", "evicted", "sealed", "tail"}
    assert picture.kinds >= drawn, "the legend names whatever is drawn"
    assert picture.rows[0].link.endswith("/groups/g")


@given(st.integers(1, 1000), st.integers(1, 1000), st.sampled_from([0.25, 0.5, 2, 4]))
def test_a_window_stays_in_the_stream(first: int, last: int, factor: float) -> None:
    first, last = sorted((first, last))
    for made in (
        Stretch(first, last).zoomed(factor, 1000),
        Stretch(first, last).moved(factor, 1000),
    ):
        assert 1 <= made.first <= made.last <= 1000


# ── Messages are shown by the names that users know, with data and headers where there are any ───


SOME = Headers({"a": b"1"})


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (Message(1, "t", b"5", 9), "Message(offset=1, tag='t', value=b'5', time_ms=9, attempt=0)"),
        (
            HeadedMessage(1, "t", b"5", 9, headers=SOME),
            "Message(offset=1, tag='t', value=b'5', time_ms=9, attempt=0, "
            "headers=Headers({'a': b'1'}))",
        ),
        (
            DecodedMessage(1, "t", b"5", 9, decoded=5),
            "Message(offset=1, tag='t', value=b'5', time_ms=9, attempt=0, data=5)",
        ),
        (
            HeadedTopicMessage(0, 1, "t", b"5", 9, headers=SOME),
            "TopicMessage(partition=0, offset=1, tag='t', value=b'5', time_ms=9, attempt=0, "
            "headers=Headers({'a': b'1'}))",
        ),
        (
            DecodedTopicMessage(0, 1, "t", b"5", 9, decoded=5, headers=SOME),
            "TopicMessage(partition=0, offset=1, tag='t', value=b'5', time_ms=9, attempt=0, "
            "data=5, headers=Headers({'a': b'1'}))",
        ),
        (
            HeadedDelivery("i", b"5", 1, "r", headers=SOME),
            "Delivery(id='i', value=b'5', attempt=1, receipt='r', headers=Headers({'a': b'1'}))",
        ),
        (
            DecodedDelivery("i", b"5", 1, "r", decoded=5),
            "Delivery(id='i', value=b'5', attempt=1, receipt='r', data=5)",
        ),
    ],
)
def test_a_message_is_shown_by_what_users_know_of_it(message: object, shown: str) -> None:
    assert repr(message) == shown
