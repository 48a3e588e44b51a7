"""What a farm is given is read exactly or refused at once: farms, quorums, rates, cursors."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import InvalidInput
from headwater.spark.timelines import FarmPlan
from headwater.timeline import Cursor, Farm, Record
from headwater.timeline.cluster import columns_of
from headwater.timeline.farm.options import RisingHorizon, parse_farm, parse_quorum
from headwater.timeline.farm.repairing import Bucket
from headwater.timeline.layout import COPYING, FarmLayout, safe_farm
from headwater.timeline.records import check_place, check_score

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.floats(allow_nan=False)))
def test_scores_are_read_as_exactly_as_servers_spell_them(scores: list[float]) -> None:
    for spell in (repr, "{:.17g}".format):
        raw = [text for score in scores for text in (b"m", spell(score).encode())]
        assert columns_of(raw) == ([b"m"] * len(scores), scores)


@given(FINITE, st.binary(max_size=40))
def test_a_cursor_says_its_place_exactly(score: float, member: bytes) -> None:
    cursor = Cursor(score, member)
    found = Cursor.parse(str(cursor))
    assert found == cursor
    assert Cursor.parse(str(cursor).rstrip("=")) == found


def test_a_cursor_is_the_bits_of_the_score_an_a_and_the_member() -> None:
    assert str(Cursor(1.0, b"foo")) == "4607182418800017408AZm9v"
    assert str(Cursor(0.0, b"\xfb\xff")) == "0A-_8="
    assert str(Cursor(-1.5, b"")) == "13832806255468478464A"
    assert check_place(Record("k", 1.0, "foo"), "start") == Cursor(1.0, b"foo")
    assert check_place((1, "foo"), "start") == Cursor(1.0, b"foo")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A",
        "12",
        "xAZm9v",
        "-1AZm9v",
        "1AZm9v!",
        "1AZ",
        "99999999999999999999AZm9v",
        f"{0x7FF0 << 48}AZm9v",
        f"{0x7FF8 << 48}AZm9v",
        "١AZm9v",
    ],
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        Cursor.parse(text)


@pytest.mark.parametrize("place", [7, b"1A", (1,), (1, 2, 3), ("1", "m")])
def test_what_is_no_place_is_refused(place: Any) -> None:
    with pytest.raises(InvalidInput):
        check_place(place, "start")


def test_a_score_is_a_number_that_a_double_holds() -> None:
    assert check_score(2**53) == 2.0**53
    assert math.copysign(1, check_score(-0.0)) == 1
    for score in (math.nan, math.inf, -math.inf, 2**53 + 1, 10**400, True, "1", None):
        with pytest.raises(InvalidInput):
            check_score(score)  # type: ignore[arg-type]


def test_a_farm_is_clusters_of_instances() -> None:
    assert parse_farm(" a:1, b:2 ;c:3") == [(["a:1", "b:2"], False), (["c:3"], False)]
    assert parse_farm("a:1;b:2,WriteOnly") == [(["a:1"], False), (["b:2"], True)]
    for text in ("", ";", "a:1;", "a:1,,b:2", "a:1;writeonly", "a:1,writeonly", None):
        with pytest.raises(InvalidInput):
            parse_farm(text)  # type: ignore[arg-type]


SECRET_FARM = "a:1, redis://:pw-1@b:2/3;WriteOnly,rediss://ada:pw-2@c,unix://ada:pw-3@/s?db=1"
SHOWN_FARM = "redis://a:1,redis://b:2/3;writeonly,rediss://c:6379,unix:///s?db=1"


def test_a_farm_is_shown_without_users_and_passwords() -> None:
    assert safe_farm(SECRET_FARM) == SHOWN_FARM
    assert safe_farm(SHOWN_FARM) == SHOWN_FARM
    assert safe_farm("") == ""
    assert safe_farm("redis://:pw/4@b:2;http://ada:pw@c") == "?;?"


def test_a_layout_and_a_plan_show_no_passwords() -> None:
    layout = FarmLayout(3, COPYING, SECRET_FARM, "redis://:pw-4@d:4")
    shown = f"FarmLayout(epoch=3, phase='copying', old='{SHOWN_FARM}', new='redis://d:4')"
    assert repr(layout) == str(layout) == shown
    assert layout.old == SECRET_FARM
    assert repr(FarmPlan(SECRET_FARM)) == f"FarmPlan('{SHOWN_FARM}')"


@pytest.mark.parametrize(
    ("quorum", "clusters", "needed"),
    [
        ("51%", 1, 1),
        ("51%", 2, 2),
        ("51%", 3, 2),
        ("51%", 4, 3),
        ("51%", 100, 51),
        ("50%", 4, 2),
        ("33.4%", 3, 2),
        ("100%", 3, 3),
        ("0.1%", 3, 1),
        (2, 3, 2),
        ("2", 3, 2),
    ],
)
def test_a_quorum_is_a_number_or_a_percentage_rounded_up(
    quorum: int | str, clusters: int, needed: int
) -> None:
    assert parse_quorum(quorum, clusters) == needed


@pytest.mark.parametrize("quorum", [0, 4, -1, "0%", "101%", "%", "half", "", 1.5, True, None])
def test_a_quorum_that_cannot_be_is_refused(quorum: Any) -> None:
    with pytest.raises(InvalidInput):
        parse_quorum(quorum, 3)


@pytest.mark.parametrize(
    "words",
    [
        {"read_strategy": "ReadNothing"},
        {"repair_strategy": "Sometimes"},
        {"max_size": 0},
        {"hash": "crc"},
        {"horizon": math.nan},
        {"timeout_ms": 0},
        {"read_rate": -1},
        {"repair_rate": -1},
        {"promote_after_ms": -1},
    ],
)
def test_an_option_that_cannot_be_is_refused(words: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Farm.open("localhost:1", **words)


@pytest.mark.parametrize("url", ["redis+cluster://a:1", "http://a:1", "a:b", "redis://a:1/x"])
def test_an_instance_is_one_server(url: str) -> None:
    with pytest.raises(InvalidInput):
        Farm.open(url)


def test_a_rate_refills_and_never_holds_more_than_a_second() -> None:
    now = 0.0
    bucket = Bucket(10, lambda: now)
    assert bucket.take_some(7) == 7
    assert bucket.take_some(7) == 3
    assert not bucket.take(1)
    now = 0.5
    assert bucket.take(5)
    assert not bucket.take(1)
    now = 100.0
    assert bucket.take_some(50) == 10


def test_a_request_above_the_rate_is_granted_by_a_full_bucket_and_paid_for_later() -> None:
    now = 0.0
    bucket = Bucket(10, lambda: now)
    assert bucket.take(25)
    now = 1.5
    assert not bucket.take(1)
    now = 2.0
    assert bucket.take(5)
    assert Bucket(0, lambda: now).take(1) is False


def test_a_horizon_never_falls() -> None:
    told = iter([5.0, 3.0, 7.0])
    horizon = RisingHorizon(lambda: next(told))
    assert [horizon(), horizon(), horizon()] == [5.0, 5.0, 7.0]
    assert RisingHorizon(None)() == -math.inf
