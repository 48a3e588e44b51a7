"""The merge rule: any order, number and grouping of operations leads to the same state."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.main import get_command

from headwater import InvalidInput
from headwater.cli.groups.timeline import app
from headwater.serve.timeline import wire
from headwater.spark.timelines import FarmPlan
from headwater.timeline import Cursor, Farm, Record, operations
from headwater.timeline.cluster import columns_of
from headwater.timeline.farm.options import RisingHorizon, parse_farm, parse_quorum
from headwater.timeline.farm.reading import READ_STRATEGIES
from headwater.timeline.farm.repairing import REPAIR_STRATEGIES, Bucket
from headwater.timeline.feeding import read_tuple
from headwater.timeline.layout import COPYING, FarmLayout, safe_farm
from headwater.timeline.pool import HASHES, Pool, find_hash, fnv, fnva, murmur3
from headwater.timeline.records import (
    NO_HORIZON,
    State,
    States,
    behind,
    check_place,
    check_score,
    check_tuples,
    kept,
    merge,
    newest,
    read_score,
    shown,
)
from headwater.views.timelines import RecordView
from tests.support.farms import roshi_keeps

MEMBERS = st.sampled_from([b"", b"a", b"b", b"\xff", b"a\x00"])
SCORES = st.one_of(
    st.integers(-3, 3).map(float), st.sampled_from([-1.7e308, -5e-324, 5e-324, 1.7e308, 2.0**53])
)
OPERATIONS = st.lists(
    st.tuples(MEMBERS, st.builds(State, SCORES, st.booleans())), min_size=1, max_size=15
)
SIZES = st.integers(1, 6)


def fold(operations: list[tuple[bytes, State]]) -> States:
    return merge({member: state} for member, state in operations)


def test_a_higher_score_wins_and_of_equal_ones_the_delete() -> None:
    assert newest([State(1, False), State(2, False)]) == State(2, False)
    assert newest([State(2, False), State(1, True)]) == State(2, False)
    assert newest([State(1, True), State(1, False)]) == State(1, True)
    assert newest([State(-2, True), None, State(-1, False)]) == State(-1, False)
    assert newest([None]) is None


@given(OPERATIONS, SIZES, st.data())
def test_what_is_kept_step_by_step_is_what_is_kept_in_the_end(
    operations: list[tuple[bytes, State]], size: int, data: st.DataObject
) -> None:
    """In any order, each any number of times, trimmed after each."""
    order = data.draw(st.permutations(operations + operations[:3]))
    state: States = {}
    for member, operation in order:
        state = kept(merge([state, {member: operation}]), size)
    assert state == kept(fold(operations), size)


@given(OPERATIONS, OPERATIONS, SIZES, SCORES)
def test_keeping_commutes_with_merging(
    left: list[tuple[bytes, State]], right: list[tuple[bytes, State]], size: int, horizon: float
) -> None:
    trimmed = [kept(fold(side), size, horizon) for side in (left, right)]
    assert kept(merge(trimmed), size, horizon) == kept(fold(left + right), size, horizon)


@given(OPERATIONS, SIZES, SCORES, SCORES)
def test_a_horizon_that_rises_forgets_what_one_that_was_always_there_would(
    operations: list[tuple[bytes, State]], size: int, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    state = kept(fold(operations), size, low)
    assert kept(state, size, high) == kept(fold(operations), size, high)


@given(OPERATIONS, SIZES)
def test_what_fell_out_never_comes_back(operations: list[tuple[bytes, State]], size: int) -> None:
    """So a tombstone that was dropped leaves no way in for an older insert."""
    everything = fold(operations)
    state = kept(everything, size)
    for member, gone in everything.items():
        if member not in state:
            again = {member: State(gone.score, False)}
            assert kept(merge([state, again]), size) == state


def test_trimming_both_kinds_apart_would_depend_on_the_order() -> None:
    """Why deletes count: the delete of x is pushed out, and an older insert of it stays out."""
    operations = [(b"x", State(4, False)), (b"x", State(5, True)), (b"z", State(7, True))]
    for order in itertools.permutations(operations):
        state: States = {}
        for member, operation in order:
            state = kept(merge([state, {member: operation}]), 1)
        assert state == {b"z": State(7, True)}


def test_a_replica_is_told_only_what_it_does_not_know() -> None:
    truth = {b"a": State(2, True), b"b": State(1, False)}
    assert behind({b"a": State(2, False), b"b": State(1, False)}, truth) == {b"a": State(2, True)}
    assert behind(truth, truth) == {}
    assert kept(truth, 9, NO_HORIZON) == truth


# A key is where Roshi would look for it: published values of the hashes, and their remainders.


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0x00000000),
        ("hello", 0x248BFA47),
        ("hello, world", 0x149BBB7F),
        ("Winter is coming", 0x43617E8F),
        ("19 Jan 2038 at 3:14:07 AM", 0xE31E8A70),
        ("The quick brown fox jumps over the lazy dog.", 0xD5C48BFC),
    ],
)
def test_murmur3(text: str, value: int) -> None:
    assert murmur3(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "one", "one_a"),
    [
        ("", 0x811C9DC5, 0x811C9DC5),
        ("a", 0x050C5D7E, 0xE40C292C),
        ("ab", 0x70772D38, 0x4D2505CA),
        ("abc", 0x439C2F4B, 0x1A47E90B),
    ],
)
def test_fnv_and_fnva(text: str, one: int, one_a: int) -> None:
    assert (fnv(text.encode()), fnva(text.encode())) == (one, one_a)


@pytest.mark.parametrize("name", ["murmur3", "fnv", "fnva"])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_an_instance_is_the_remainder_of_the_hash(name: str, count: int) -> None:
    pool = Pool([f"h:{port}" for port in range(1, count + 1)], name, 100)
    keys = [f"key-{i}".encode() for i in range(50)] + [b"", b"\xff\x00"]
    assert [pool.index(key) for key in keys] == [find_hash(name)(key) % count for key in keys]
    shares = pool.split(keys)
    assert sorted(key for _, share in shares for key in share) == sorted(keys)
    for instance, share in shares:
        assert all(pool.instances[pool.index(key)] is instance for key in share)


def test_bytes_above_127_count_as_such() -> None:
    assert murmur3(b"\xff\xff\xff\xff") == 0x76293B50
    assert murmur3(b"\x21\x43\x65") == 0x7E4A8634


@pytest.mark.parametrize("name", ["sha1", "", None])
def test_another_hash_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="murmur3, fnv, fnva"):
        find_hash(name)


# ── Data that Roshi filled to its limit is safe under the merge rule: no live element is lost ────


ROSHI_MEMBERS = st.binary(min_size=1, max_size=1)
ROSHI_SCORES = st.integers(-9, 9).map(float)
ROSHI_OPERATIONS = st.lists(
    st.tuples(ROSHI_MEMBERS, st.builds(State, ROSHI_SCORES, st.booleans())), min_size=1, max_size=40
)
ROSHI_SIZES = st.integers(1, 4)
BRIM = [
    *((b"%d" % i, State(float(i), False)) for i in range(3)),
    *((b"%d" % i, State(float(i), True)) for i in range(5, 8)),
]


def live(states: States) -> set[bytes]:
    return {member for member, state in states.items() if not state.deleted}


@given(ROSHI_OPERATIONS, ROSHI_SIZES)
@example(BRIM, 3)
def test_all_that_roshi_keeps_of_a_key_is_kept(
    operations: list[tuple[bytes, State]], size: int
) -> None:
    filled = roshi_keeps(operations, size)
    assert kept(filled, 2 * size) == filled
    assert len(shown(filled, size)) == len(live(filled))


@given(ROSHI_OPERATIONS, ROSHI_SIZES, ROSHI_MEMBERS, ROSHI_SCORES)
@example(BRIM, 3, b"x", 9.0)
@example(BRIM, 3, b"x", 0.5)
def test_an_insert_costs_no_live_element_that_it_does_not_outrank(
    operations: list[tuple[bytes, State]], size: int, member: bytes, score: float
) -> None:
    filled = roshi_keeps(operations, size)
    after = kept(merge([filled, {member: State(score, False)}]), 2 * size)
    gone = live(filled) - live(after)
    assert all((filled[one].score, one) < (score, member) for one in gone)
    assert len(gone) <= 1
    # And what goes is beyond what a full key shows, or the newest deletes push it out.
    if gone and len(live(filled)) == size:
        assert {m for m, _ in shown(after, size)} >= live(filled) - gone


@given(ROSHI_OPERATIONS, ROSHI_SIZES, st.data())
@example(BRIM, 3, None)
def test_a_repair_of_copies_that_agree_costs_nothing(
    operations: list[tuple[bytes, State]], size: int, data: st.DataObject | None
) -> None:
    """Copies that lack some of it are brought what they lack."""
    filled = roshi_keeps(operations, size)
    some = {m: s for m, s in filled.items() if data is None or data.draw(st.booleans())}
    assert kept(merge([filled, some, filled]), 2 * size) == filled


@given(st.lists(ROSHI_OPERATIONS, min_size=1, max_size=3), ROSHI_SIZES)
def test_copies_that_differ_in_everything_fit_into_a_keep_for_all_of_them(
    given_to: list[list[tuple[bytes, State]]], size: int
) -> None:
    """So a first walk loses nothing with twice max_size for each cluster."""
    copies = [roshi_keeps(operations, size) for operations in given_to]
    truth = merge(copies)
    assert kept(truth, 2 * size * len(copies)) == truth


@given(ROSHI_OPERATIONS, ROSHI_SIZES, ROSHI_SIZES)
def test_a_key_shows_its_newest_inserts_whatever_else_it_keeps(
    operations: list[tuple[bytes, State]], size: int, more: int
) -> None:
    state = kept(merge({m: s} for m, s in operations), size + more)
    page = shown(state, size)
    assert len(page) == min(size, len(live(state)))
    left = [(state[m].score, m) for m in live(state) - {m for m, _ in page}]
    assert all((score, member) > max(left, default=(-99.0, b"")) for member, score in page)
    assert page == sorted(page, key=lambda row: (row[1], row[0]), reverse=True)


@given(ROSHI_OPERATIONS, ROSHI_OPERATIONS, ROSHI_OPERATIONS, ROSHI_SIZES)
def test_merging_what_is_kept_is_commutative_associative_and_idempotent(
    one: list[tuple[bytes, State]],
    two: list[tuple[bytes, State]],
    three: list[tuple[bytes, State]],
    size: int,
) -> None:
    """Whatever Roshi left: the copies need not obey this rule before they are merged."""

    def join(*states: States) -> States:
        return kept(merge(states), 2 * size)

    a, b, c = (roshi_keeps(operations, size) for operations in (one, two, three))
    assert join(a, b) == join(b, a)
    assert join(join(a, b), c) == join(a, join(b, c)) == join(a, b, c)
    assert join(a, a) == join(a) == a
    assert join(join(a, b), a, b) == join(a, b)


# ── A score is the number that was written, in whatever spelling, or it is refused ───────────────


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
@example(text="1700000000123456789.5")
@example(text="1700000000123456768")
@example(text="1.700000000123456789e18")
@example(text="1700000000.123456789")
@example(text="1700000000.0999999")
@example(text="90071992547409930e-1")
@example(text="0.1000000000000000055511151231257827021181583404541015625")
@example(text="5.00000000000000000001")
@example(text="1e22")
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
        rounded = r"would be rounded: .*use milliseconds or microseconds"
        with pytest.raises(ValueError, match=rounded):
            way(text)


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


# ── What a farm is given is read exactly or refused at once: farms, quorums, rates, cursors ──────


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
        {"max_size": 0},
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


# ── Every strategy and hash of a list is offered, documented and refused under any other name ────


ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "reference" / "timeline.md").read_text("utf-8")
PROMISES = (ROOT / "src" / "headwater" / "timeline" / "README.md").read_text("utf-8")
LISTS = {
    "read_strategy": list(READ_STRATEGIES),
    "repair_strategy": list(REPAIR_STRATEGIES),
    "hash": list(HASHES),
}


def help_of(option: str) -> str:
    """Return the help of an option of ``headwater timeline serve``."""
    command = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    (found,) = [one.help for one in command.params if one.name == option]
    return str(found)


def named_in(text: str, like: str) -> set[str]:
    return set(re.findall(rf"\b(?:{like})\b", text))


# What a name of the list looks like: so a text that offers one that is gone is found, too.
LIKE = {
    "read_strategy": r"Send[A-Z]\w+Read\w+",
    "repair_strategy": r"[A-Z]\w*Repairs",
    "hash": r"murmur\d|fnva?|crc\d*|sha\d+",
}


@pytest.mark.parametrize("option", LISTS)
def test_the_reference_the_help_and_the_docstring_name_all_of_a_list_and_no_other(
    option: str,
) -> None:
    (row,) = re.findall(rf"^\| `{option}` \| (.*) \|$", REFERENCE, re.MULTILINE)
    for text in (row, help_of(option), Farm.open.__doc__ or ""):
        assert named_in(text, LIKE[option]) == set(LISTS[option])


def test_the_promises_say_what_every_read_strategy_does() -> None:
    rows = re.findall(r"^\| (Send\w+) \|", PROMISES, re.MULTILINE)
    assert rows == LISTS["read_strategy"]


@pytest.mark.parametrize("option", LISTS)
def test_every_name_is_accepted_in_any_case_and_no_other(option: str) -> None:
    for name in LISTS[option]:
        for spelled in (name, name.lower(), name.upper()):
            Farm.open("localhost:1", **{option: spelled}).close()  # type: ignore[arg-type]
    for wrong in ("", "Sometimes", None):
        with pytest.raises(InvalidInput, match=f"{option} must be one of {LISTS[option][0]}"):
            Farm.open("localhost:1", **{option: wrong})  # type: ignore[arg-type]
