"""What producers wrote is shown exactly: nothing is hidden, turned round, or cut without a word."""

from __future__ import annotations

import json
import time

import pytest

from headwater.serve.console.render import age
from headwater.serve.console.ruler import moment_of, steps_of
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
