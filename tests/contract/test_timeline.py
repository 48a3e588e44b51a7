"""A timeline is a last-writer-wins set, newest first, by both farms and on every server."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest

from headwater import HeadwaterError, InvalidInput
from headwater import timeline as public
from headwater.store.library import NAME, name_in_server
from headwater.timeline import AsyncFarm, Cursor, Farm, Record, State, Written
from headwater.timeline.pool import murmur3
from tests.support.farms import OpenFarm, Replica, members

# What is there, what is done, and what is there then: seed for the law, where a delete wins ties.
TABLE = [
    (State(1, False), ("insert", 0), State(1, False)),
    (State(1, False), ("insert", 1), State(1, False)),
    (State(1, False), ("insert", 2), State(2, False)),
    (State(1, False), ("delete", 0), State(1, False)),
    (State(1, False), ("delete", 1), State(1, True)),
    (State(1, False), ("delete", 2), State(2, True)),
    (State(1, True), ("insert", 0), State(1, True)),
    (State(1, True), ("insert", 1), State(1, True)),
    (State(1, True), ("insert", 2), State(2, False)),
    (State(1, True), ("delete", 0), State(1, True)),
    (State(1, True), ("delete", 1), State(1, True)),
    (State(1, True), ("delete", 2), State(2, True)),
]


@pytest.mark.parametrize("shift", [0.0, -10.0, -0.5, 2.0**52])
def test_every_pair_of_operations_gives_what_the_table_says(
    farm: Farm, three: list[Replica], shift: float
) -> None:
    for row, (before, (verb, score), after) in enumerate(TABLE):
        key, truth = f"row-{row}", State(after.score + shift, after.deleted)
        (farm.delete if before.deleted else farm.insert)([(key, before.score + shift, "a")])
        done = getattr(farm, verb)([(key, score + shift, "a")])
        assert (done.applied, done.unchanged) == ((1, 0) if before != after else (0, 1))
        assert farm.score([(key, "a")]) == {(key, "a"): truth}
        farm.settle()
        assert [replica.states(key.encode()) for replica in three] == [{b"a": truth}] * 3


def test_elements_come_newest_first_and_equal_scores_by_member_descending(farm: Farm) -> None:
    farm.insert([("k", s, m) for s, m in [(1, "a"), (3, "b"), (1, "c"), (-5, "z"), (1, "B")]])
    assert farm.select(["k"])["k"] == [
        Record("k", 3.0, "b"),
        Record("k", 1.0, "c"),
        Record("k", 1.0, "a"),
        Record("k", 1.0, "B"),
        Record("k", -5.0, "z"),
    ]
    assert farm.select(["k", "nothing"], limit=1) == {"k": [("k", 3.0, "b")], "nothing": []}


@pytest.mark.parametrize("step", [1, 7, 100])
def test_pages_line_up_however_many_scores_are_equal(farm: Farm, step: int) -> None:
    farm.insert([("k", i // 40, f"m{i:03}") for i in range(100)])
    everything = farm.select(["k"], limit=1000)["k"]
    assert [record.member for record in everything] == [f"m{i:03}" for i in reversed(range(100))]
    by_rank = [farm.select(["k"], at, step)["k"] for at in range(0, 101, step)]
    assert [record for page in by_rank for record in page] == everything
    by_cursor: list[Record] = []
    while page := farm.select_range(["k"], by_cursor[-1] if by_cursor else None, limit=step)["k"]:
        by_cursor += page
    assert by_cursor == everything


def test_both_ends_of_a_range_are_excluded_and_need_not_exist(farm: Farm) -> None:
    farm.insert([("k", 1, m) for m in "aceg"] + [("k", 2, "x"), ("k", 0, "y")])

    def between(start: Any, stop: Any) -> list[Any]:
        return [r.member for r in farm.select_range(["k"], start=start, stop=stop, limit=9)["k"]]

    assert between(None, None) == ["x", "g", "e", "c", "a", "y"]
    assert between((1, "g"), (1, "a")) == ["e", "c"]
    assert between((1, "f"), (1, "b")) == ["e", "c"]
    assert between((1.5, ""), (0.5, "")) == ["g", "e", "c", "a"]
    assert between((1, ""), None) == ["y"]
    assert between(str(Cursor(2.0, b"x")), str(Cursor(1.0, b"e"))) == ["g"]
    assert between((1, "a"), (1, "g")) == []
    assert between((-9, "a"), None) == []


def test_scores_come_back_to_the_last_bit(farm: Farm) -> None:
    scores = [
        0.1,
        1 / 3,
        -1 / 3,
        5e-324,
        -5e-324,
        2.2250738585072014e-308,
        1.7976931348623157e308,
        -1.7976931348623157e308,
        2.0**53,
        2.0**53 - 1,
        1445412480123.4567,
        math.pi * 1e200,
        0.0,
    ]
    farm.insert([("k", score, f"m{i}") for i, score in enumerate(scores)])
    farm.settle()
    found = {record.member: record.score for record in farm.select(["k"], limit=99)["k"]}
    assert found == {f"m{i}": score for i, score in enumerate(scores)}
    again = farm.insert([("k", score, f"m{i}") for i, score in enumerate(scores)])
    assert again.unchanged == len(scores)
    below = [math.nextafter(score, -math.inf) for score in scores[:6]]
    farm.delete([("k", score, f"m{i}") for i, score in enumerate(below)])
    assert len(members(farm, limit=99)) == len(scores)
    farm.delete([("k", score, f"m{i}") for i, score in enumerate(scores)])
    assert members(farm) == []


def test_keys_and_members_are_bytes_and_come_back_as_they_were_asked_for(farm: Farm) -> None:
    farm.insert([(b"\xff\x00", 1, b"\xfe"), ("ключ", 2, "член"), ("", 3, ""), ("a+", 4, "m")])
    farm.insert([("a", 5, "n"), ("ключ", 1, b"\xfe")])
    found = farm.select([b"\xff\x00", "ключ", "ключ".encode(), "", "a+", "a", "a-"])
    assert found[b"\xff\x00"] == [(b"\xff\x00", 1.0, b"\xfe")]
    assert found["ключ"] == [("ключ", 2.0, "член"), ("ключ", 1.0, b"\xfe")]
    assert found["ключ".encode()] == [
        ("ключ".encode(), 2.0, "член".encode()),
        ("ключ".encode(), 1.0, b"\xfe"),
    ]
    assert found[""] == [("", 3.0, "")]
    assert (found["a+"], found["a"], found["a-"]) == ([("a+", 4.0, "m")], [("a", 5.0, "n")], [])
    # Whatever came out can be given again.
    assert farm.delete(found["ключ"]).applied == 2


@pytest.mark.parametrize(
    "batch",
    [
        [("k", math.nan, "m")],
        [("k", math.inf, "m")],
        [("k", "1", "m")],
        [("k", 2**53 + 1, "m")],
        [("k", True, "m")],
        [(1, 1, "m")],
        [("k", 1, None)],
        [("k", 1)],
        ["k1m!"],
        [("k", 1, "\ud800")],
        [("k" * 70_000, 1, "m")],
        [("k", 1, b"m" * 2_000_000)],
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_is_sent(farm: Farm, batch: Any) -> None:
    for verb in (farm.insert, farm.delete):
        with pytest.raises(InvalidInput):
            verb([("k", 1, "good"), *batch])
    assert members(farm) == []


@pytest.mark.parametrize(
    "words",
    [{"offset": -1}, {"limit": 0}, {"limit": -1}, {"limit": 2_000_000}, {"offset": "1"}],
)
def test_a_page_that_cannot_be_is_refused(farm: Farm, words: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        farm.select(["k"], **words)
    with pytest.raises(InvalidInput, match=r"\['k'\]"):
        farm.select("k")


def test_a_key_is_on_the_instance_that_roshi_would_ask(
    open_: OpenFarm, three: list[Replica]
) -> None:
    """Clusters may have different numbers of instances; the last one here is half of a cluster."""
    urls = [replica.url for replica in three]
    farm = open_(f"{urls[0]},{urls[1]};{urls[2]}")
    keys = [f"key-{i}" for i in range(40)]
    farm.insert([(key, 1, "m") for key in keys])
    farm.delete([(key, 2, "n") for key in keys])
    farm.settle()
    for place, replica in enumerate(three):
        here = [key for key in keys if place == 2 or murmur3(key.encode()) % 2 == place]
        assert set(replica.client.keys()) == {f"{key}{s}".encode() for key in here for s in "+-"}
    assert all(farm.select(keys)[key] == [(key, 1.0, "m")] for key in keys)


def test_a_batch_tells_what_happened_to_it(farm: Farm) -> None:
    batch = [("k", 1, "a"), ("k", 2, "a"), ("k", 2, "a"), ("k", 1, "b"), ("j", 0, "a")]
    assert farm.insert(batch) == Written(applied=4, unchanged=1)
    assert farm.insert(batch) == Written(unchanged=5)
    assert farm.delete([("k", 1.5, "a"), ("k", 1, "b"), ("k", 9, "new")]) == (2, 1, 0, 0, 0)
    assert farm.insert([]) == Written()
    assert members(farm) == ["a"]


def test_large_batches_go_in_bounded_calls(farm: Farm) -> None:
    batch = [(f"k{i % 3}", i, f"m{i}") for i in range(12_000)]
    assert farm.insert(batch).applied == 12_000
    assert farm.delete(batch[:9000]).applied == 9000
    assert len(farm.select(["k1"], limit=9000)["k1"]) == 1000
    big = [("big", i, bytes([i]) * 400_000) for i in range(8)]
    assert farm.insert(big).applied == 8
    assert len(farm.select(["big"])["big"]) == 8
    pairs = [("k1", f"m{i}") for i in range(12_000)]
    known = farm.score(pairs)
    assert [pair for pair, state in known.items() if state] == [
        p for p in pairs if int(p[1][1:]) % 3 == 1
    ]
    assert {
        state.deleted for pair, state in known.items() if state and int(pair[1][1:]) < 9000
    } == {True}
    many = [f"k{i}" for i in range(3000)]
    assert len(farm.select(many)) == 3000


def test_a_full_key_keeps_the_newest_deletes_counted(open_: OpenFarm, three: list[Replica]) -> None:
    farm = open_(max_size=3, keep=3)
    farm.insert([("k", score, f"m{score}") for score in (1, 2, 3)])
    assert farm.delete([("k", 5, "x")]) == Written(applied=1, trimmed=1)
    assert members(farm) == ["m3", "m2"]
    # Older than all that is kept: told, and nothing changes. What is kept already is unchanged.
    assert farm.insert([("k", 1, "m1"), ("k", 0, "m3"), ("k", 4, "x")]) == (0, 2, 1, 0, 0)
    assert farm.delete([("k", 1.5, "new")]).rejected == 1
    # A tie with the oldest goes by member.
    assert farm.insert([("k", 2, "a"), ("k", 2, "z")]) == (1, 0, 1, 1, 0)
    assert members(farm) == ["m3", "z"]
    farm.settle()
    assert all(len(replica.states(b"k")) == 3 for replica in three)


def test_a_batch_larger_than_a_key_leaves_its_newest(open_: OpenFarm) -> None:
    farm = open_(max_size=100, keep=100)
    done = farm.insert([("k", i * 7 % 5000, f"m{i * 7 % 5000:04}") for i in range(5000)])
    assert (done.applied + done.rejected, done.trimmed) == (5000, done.applied - 100)
    assert members(farm, limit=1000) == [f"m{i:04}" for i in range(4999, 4899, -1)]
    assert members(farm, offset=99) == ["m4900"]
    assert members(farm, offset=100) == []


def test_below_the_horizon_nothing_is_kept_or_taken(open_: OpenFarm, three: list[Replica]) -> None:
    horizon = 0.0
    farm = open_(horizon=lambda: horizon)
    farm.insert([("k", score, f"m{score}") for score in (-1, 0, 1, 2, 3)])
    farm.delete([("k", 1, "m1"), ("k", 1, "x")])
    assert members(farm) == ["m3", "m2", "m0"]
    horizon = 2.0
    assert members(farm) == ["m3", "m2"]
    assert farm.score([("k", "m1"), ("k", "m2")])["k", "m1"] is None
    done = farm.insert([("k", 0.5, "m1"), ("k", 1, "x"), ("k", 2, "m1")])
    assert (done.applied, done.rejected, done.forgotten) == (1, 2, 3)
    horizon = 0.0
    assert farm.insert([("k", 1.5, "x")]).rejected == 1, "a horizon never falls"
    farm.settle()
    for replica in three:
        assert replica.states(b"k").keys() == {b"m1", b"m2", b"m3"}


def test_functions_that_are_lost_come_back(farm: Farm, three: list[Replica]) -> None:
    farm.insert([("k", 1, "m")])
    three[0].client.execute_command("FUNCTION", "FLUSH")
    assert farm.insert([("k", 2, "n")]).applied == 1
    assert members(farm) == ["n", "m"]


def test_a_refusal_that_is_no_move_of_the_farm_is_reported_as_it_is(
    farm: Farm, three: list[Replica]
) -> None:
    farm.insert([("k", 1, "m")])
    refusing = "redis.register_function('%s', function() return redis.error_reply('HW_ODD x') end)"
    for replica in three:
        source = f"#!lua name={NAME}\n{refusing % name_in_server('hw_timeline_write')}"
        replica.client.function_load(source, replace=True)
    with pytest.raises(HeadwaterError, match=r"refuses a call of timelines: .*ODD"):
        farm.insert([("k", 2, "m")])


def test_both_farms_have_the_same_names_and_parameters() -> None:
    names = {name for name in dir(Farm) if not name.startswith("_")}
    for name in names:
        ours, theirs = (
            inspect.signature(getattr(Farm, name)),
            inspect.signature(getattr(AsyncFarm, name)),
        )
        assert ours.parameters == theirs.parameters, name
        assert getattr(Farm, name).__doc__
        assert inspect.iscoroutinefunction(getattr(AsyncFarm, name)) == (name != "open")
    assert sorted(public.__all__) == public.__all__


def test_a_closed_farm_says_so(open_: OpenFarm) -> None:
    farm = open_()
    farm.insert([("k", 1, "m")])
    farm.close()
    farm.close()
    with pytest.raises(Exception, match="closed"):
        farm.select(["k"])
