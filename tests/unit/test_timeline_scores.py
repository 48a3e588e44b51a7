"""A score is the number that was written, in whatever spelling, or it is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.errors import InvalidInput
from headwater.serve.timeline import wire
from headwater.timeline import Record, operations
from headwater.timeline.feeding import read_tuple
from headwater.timeline.records import check_score, check_tuples, read_score
from headwater.views.timelines import RecordView

DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
WHOLE = st.one_of(
    st.integers(-(10**25), 10**25),
    st.integers(2**53 - 9, 2**53 + 9),
    st.integers(1_700_000_000_000_000_000, 1_800_000_000_000_000_000),
)


def by_http(text: str) -> float:
    body = b'[{"key":"aw==","score":%s,"member":"bQ=="}]' % text.encode()
    return float(wire.read_tuples(body)[0][1])


def by_a_message(text: str) -> float:
    return operations(f'{{"key":"k","score":{text},"member":"m"}}'.encode())[0].score


def by_a_line(text: str) -> float:
    return read_tuple(f'{{"key":"k","score":{text},"member":"m"}}'.encode())[1]


WAYS: list[Callable[[str], float]] = [read_score, by_http, by_a_message, by_a_line]


@st.composite
def spellings(draw: st.DrawFn) -> str:
    """Draw a number as JSON may spell it: whole, with a fraction, with an exponent, with zeros."""
    digits = draw(st.from_regex(r"-?(0|[1-9][0-9]{0,22})", fullmatch=True))
    fraction = draw(st.one_of(st.just(""), st.from_regex(r"\.[0-9]{1,22}", fullmatch=True)))
    exponent = draw(st.one_of(st.just(""), st.from_regex(r"[eE][+-]?[0-9]{1,2}", fullmatch=True)))
    return digits + fraction + exponent


def kept_exactly(text: str, score: float) -> bool:
    """Whether a score is the number of a text: itself if whole, else as programs print it."""
    number = Decimal(text)
    if Fraction(number) == Fraction(score):
        return True
    fraction = Fraction(number).denominator != 1
    return fraction and number in (Decimal(repr(score)), Decimal(f"{score:.17g}"))


@pytest.mark.parametrize("way", WAYS)
@given(
    text=st.one_of(spellings(), WHOLE.map(str), WHOLE.map("{}.0".format), DOUBLES.map(json.dumps))
)
@example(text="1700000000123456789.0")
@example(text="1700000000123456789")
@example(text="1.700000000123456789e18")
@example(text="5.00000000000000000001")
@example(text="1e23")
@example(text="1e400")
@example(text="-0.0")
def test_what_is_accepted_is_kept_as_the_number_that_was_written(
    way: Callable[[str], float], text: str
) -> None:
    if math.isinf(float(text)):
        with pytest.raises(ValueError, match="too large for a double; scale it down"):
            way(text)
    elif kept_exactly(text, float(text)):
        assert way(text) == float(text)
        assert str(way(text)) != "-0.0"
    else:
        with pytest.raises(ValueError, match="would be rounded"):
            way(text)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "text",
    [
        "1700000000123456789.0",
        "1700000000123456789",
        "1700000000123456789.5",
        "1.700000000123456789e18",
        "9007199254740993",
        "9007199254740993.0",
        "90071992547409930e-1",
        "-9007199254740993.00",
        "1e23",
        "1700000000.123456789",
    ],
)
def test_what_would_be_rounded_is_refused_with_the_cure(
    way: Callable[[str], float], text: str
) -> None:
    with pytest.raises(ValueError, match=r"would be rounded: .*use milliseconds or microseconds"):
        way(text)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("17", 17.0),
        ("1700000000123", 1700000000123.0),
        ("9007199254740992.0", 2.0**53),
        ("1e22", 1e22),
        ("1700000000123456768", 1700000000123456768.0),
        ("1.05", 1.05),
        ("0.10000000000000001", 0.1),
        ("1700000000.0999999", 1700000000.0999999),
        ("0.1000000000000000055511151231257827021181583404541015625", 0.1),
    ],
)
def test_what_a_program_prints_for_a_double_is_that_double(text: str, score: float) -> None:
    assert [way(text) for way in WAYS] == [score] * len(WAYS)


@pytest.mark.parametrize(
    "text", ["1.7e18+1", "", "x", "1_0", "nan", "inf", "0x10", "１", "1,5", " 1"]
)
def test_what_is_no_number_is_refused_as_an_option(text: str) -> None:
    with pytest.raises(InvalidInput, match="must be a number"):
        read_score(text)


@pytest.mark.parametrize("text", ['"17"', "null", "true", "[1]", "1.7e18+1", "NaN", "017"])
def test_what_is_no_number_is_refused_in_json(text: str) -> None:
    for way in (by_http, by_a_message, by_a_line):
        with pytest.raises(ValueError):  # noqa: PT011  by JSON's reader, or by ours
            way(text)


@given(st.one_of(WHOLE, DOUBLES))
def test_a_number_of_python_is_kept_as_it_is_or_refused(number: float) -> None:
    try:
        score = check_score(number)
    except InvalidInput:
        assert isinstance(number, int)
        assert Fraction(float(number)) != number
    else:
        assert Fraction(score) == Fraction(number)


@pytest.mark.parametrize("score", [Decimal("0.1"), Fraction(1, 3), "17", True, None, 1j])
def test_what_is_no_int_or_float_is_refused_with_the_cure(score: Any) -> None:
    with pytest.raises(InvalidInput, match=r"must be an int or a float.*convert it"):
        check_tuples([("k", score, "m")])


@given(DOUBLES.map(lambda score: score + 0.0))
@example(1700000000123456768.0)
@example(-1.7e308)
def test_what_is_shown_in_json_is_exact_and_can_be_given_again(score: float) -> None:
    line = RecordView.of(Record("k", score, "m")).to_json()
    assert read_tuple(line)[1] == score
    columns = {b"k": ([b"m"], [score])}
    for query in ("", "cursors=true", "coalesce=1"):
        reply = wire.selected(wire.read_query(query), [b"k"], answer_of(columns), 0.0)
        assert reply_scores(reply.body) == [score]


def answer_of(columns: dict[bytes, Any]) -> Any:
    from headwater.timeline.farm.reading import Answer
    from headwater.timeline.farm.repairing import Failures

    return Answer(columns, Failures(), 0.0)


def reply_scores(body: bytes) -> list[float]:
    records = msgspec.json.decode(body)["records"]
    rows = records if isinstance(records, list) else records["k"]
    return [by_http(json.dumps(row["score"])) for row in rows]


def test_rows_of_spark_are_kept_exactly_or_refused() -> None:
    from headwater.spark.timelines import operations_of

    def scores(array: pa.Array) -> list[float]:
        keys = pa.array(["k"] * len(array))
        batch = pa.RecordBatch.from_arrays([keys, array, keys], names=["key", "score", "member"])
        return [float(text) for _, text, _ in check_tuples(op[:3] for op in operations_of(batch))]

    assert scores(pa.array([17, 2**53], pa.int64())) == [17.0, 2.0**53]
    assert scores(pa.array([0.5], pa.float32())) == [0.5]
    assert scores(pa.array([Decimal("0.10"), Decimal("17.00")], pa.decimal128(20, 2))) == [
        0.1,
        17.0,
    ]
    assert scores(pa.array(["1700000000123", "1.5e3"])) == [1700000000123.0, 1500.0]
    nanoseconds = 1_700_000_000_123_456_789
    for refused in (
        pa.array([nanoseconds], pa.int64()),
        pa.array([Decimal(nanoseconds)], pa.decimal128(20, 0)),
        pa.array([f"{nanoseconds}.0"]),
    ):
        with pytest.raises(InvalidInput, match="would be rounded"):
            scores(refused)


def test_a_document_that_is_nested_too_deep_is_refused() -> None:
    document = b'{"key": "k", "score": 1, "member": "m", "other": ' + b"[" * 30_000
    with pytest.raises(InvalidInput, match="does not hold operations"):
        operations(document)
    with pytest.raises(ValueError, match="too deep"):
        read_tuple(document)
