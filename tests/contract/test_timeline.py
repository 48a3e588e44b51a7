"""A timeline is a last-writer-wins set, newest first, by both farms and on every server."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headwater import AllReplicasFailed, InvalidInput, QuorumFailed
from headwater import timeline as public
from headwater.timeline import AsyncFarm, Cursor, Farm, Record, State, Tally, Written
from headwater.timeline.metrics import COUNTERS, DURATIONS
from headwater.timeline.pool.hashing import murmur3
from tests.support import blocking
from tests.support.farms import Replica, open_farm, replicas
from tests.support.servers import Server, redis_binary

Open = Callable[..., Farm]
DEAD = "127.0.0.1:1"


@pytest.fixture(scope="module", params=["plain", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    binary = redis_binary() if request.param == "redis" else None
    if request.param == "redis" and binary is None:
        pytest.skip("no redis-server 7.0 or later on the PATH")
    with Server(binary) as server:
        yield server


@pytest.fixture
def three(server: Server) -> list[Replica]:
    """Three empty instances."""
    return replicas(server, 3)


@pytest.fixture(params=["sync", "async"])
def open_(
    request: pytest.FixtureRequest, loop: blocking.Loop, three: list[Replica]
) -> Iterator[Open]:
    """Open farms, by default one of three clusters; closed after the test."""
    with contextlib.ExitStack() as opened:

        def open_(urls: str | None = None, **words: Any) -> Farm:
            urls = urls or ";".join(replica.url for replica in three)
            farm = open_farm(request.param, loop, urls, **words)
            opened.callback(farm.close)
            return farm

        yield open_


@pytest.fixture
def farm(open_: Open) -> Farm:
    return open_()


def members(farm: Farm, key: str = "k", **words: Any) -> list[Any]:
    return [record.member for record in farm.select([key], **words)[key]]


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


def test_a_key_is_on_the_instance_that_roshi_would_ask(open_: Open, three: list[Replica]) -> None:
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


def test_a_batch_tells_what_became_of_it(farm: Farm) -> None:
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
    many = [f"k{i}" for i in range(3000)]
    assert len(farm.select(many)) == 3000


def test_a_full_key_keeps_the_newest_deletes_counted(open_: Open, three: list[Replica]) -> None:
    farm = open_(max_size=3)
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


def test_a_batch_larger_than_a_key_leaves_its_newest(open_: Open) -> None:
    farm = open_(max_size=100)
    done = farm.insert([("k", i * 7 % 5000, f"m{i * 7 % 5000:04}") for i in range(5000)])
    assert (done.applied + done.rejected, done.trimmed) == (5000, done.applied - 100)
    assert members(farm, limit=1000) == [f"m{i:04}" for i in range(4999, 4899, -1)]
    assert members(farm, offset=99) == ["m4900"]
    assert members(farm, offset=100) == []


def test_below_the_horizon_nothing_is_kept_or_taken(open_: Open, three: list[Replica]) -> None:
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


STRATEGIES = [
    "SendOneReadOne",
    "SendAllReadAll",
    "SendAllReadFirstLinger",
    "SendVarReadFirstLinger",
]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_read_strategy_gives_the_same_of_clusters_that_agree(
    open_: Open, strategy: str
) -> None:
    farm = open_(read_strategy=strategy.lower())
    farm.insert([("k", i, f"m{i}") for i in range(20)] + [("j", 1, "a")])
    farm.settle()
    found = farm.select(["k", "j", "none"], offset=2, limit=3)
    assert [record.member for record in found["k"]] == ["m17", "m16", "m15"]
    assert (found["j"], found["none"], found.partial) == ([], [], False)
    found = farm.select_range(["k"], start=(15, "m15"), stop=(11, "m11"), limit=9)
    assert [record.member for record in found["k"]] == ["m14", "m13", "m12"]


def test_a_read_that_asks_all_shows_no_element_that_a_cluster_knows_to_be_deleted(
    open_: Open, three: list[Replica]
) -> None:
    """However many are: pages are read on until they are full, and all clusters are repaired."""
    first = open_(three[0].url)
    first.insert([("k", i, f"m{i:02}") for i in range(40)])
    open_(three[1].url).delete([("k", i, f"m{i:02}") for i in range(10, 40)])
    open_(three[2].url).insert([("k", 50, "m05")])
    farm = open_()
    found = [(r.score, r.member) for r in farm.select(["k"], limit=8)["k"]]
    assert found == [(50.0, "m05"), *((float(i), f"m{i:02}") for i in (9, 8, 7, 6, 4, 3, 2))]
    assert members(farm, offset=8, limit=9) == ["m01", "m00"]
    farm.settle()
    assert members(open_(three[0].url, read_strategy="SendOneReadOne"), limit=3) == [
        "m05",
        "m09",
        "m08",
    ]


@pytest.mark.parametrize("strategy", STRATEGIES[1:])
def test_reads_repair_what_they_see_to_differ(
    open_: Open, three: list[Replica], strategy: str
) -> None:
    """Ties, negative scores and deletes alike; nothing comes back."""
    one, two = open_(three[0].url), open_(three[1].url)
    one.insert([("k", -1, "neg"), ("k", 7, "tie"), ("k", 3, "gone"), ("k", 2, "behind")])
    two.delete([("k", 7, "tie"), ("k", 4, "gone")])
    two.insert([("k", 5, "behind")])
    farm = open_(read_strategy=strategy)
    farm.select(["k"])
    farm.settle()
    truth = {
        b"neg": State(-1, False),
        b"tie": State(7, True),
        b"gone": State(4, True),
        b"behind": State(5, False),
    }
    assert [replica.states(b"k") for replica in three] == [truth] * 3


def test_an_element_that_newer_ones_push_out_goes_with_the_next_repair(
    open_: Open, three: list[Replica]
) -> None:
    """A cluster that lost everything takes an insert that the others know to be too old."""
    farm = open_(max_size=3)
    farm.delete([("k", 1, "old"), ("k", 2, "x"), ("k", 3, "y")])
    farm.insert([("k", 4, "m")])
    farm.settle()
    three[2].client.flushdb()
    open_(three[2].url, max_size=3).insert([("k", 1, "old")])
    assert members(farm) == ["m"]
    assert farm.score([("k", "old")]) == {("k", "old"): None}
    farm.settle()
    assert three[2].states(b"k") == three[0].states(b"k")


def test_repair_of_a_key_brings_tombstones_that_no_read_sees(
    open_: Open, three: list[Replica]
) -> None:
    open_(three[0].url).delete([("k", 1, f"m{i}") for i in range(2500)])
    farm = open_()
    assert farm.repair(["k", "none"]) == (2, 2500, 2500, 5000, 0)
    assert farm.repair(["k", "none"]) == (2, 2500, 0, 0, 0)
    assert three[2].states(b"k") == three[0].states(b"k")


def test_repairs_can_be_left_out_or_limited(open_: Open, three: list[Replica]) -> None:
    open_(three[0].url).insert([("k", i, f"m{i}") for i in range(10)])
    for strategy, left, rate in (("NoRepairs", 0, 9), ("RateLimitedRepairs", 4, 4)):
        tally = Tally()
        farm = open_(repair_strategy=strategy, repair_rate=rate, metrics=tally)
        assert len(members(farm)) == 10
        farm.settle()
        assert len(three[1].states(b"k")) == left
        assert tally.counts["repair_discarded"] == 10 - left
        assert tally.counts["select_repair_needed"] == 10
        assert tally.counts["repair_write_success"] == 2 * left


def test_a_write_needs_its_quorum(open_: Open, three: list[Replica]) -> None:
    urls = [replica.url for replica in three]
    farm = open_(f"{urls[0]};{DEAD};{DEAD}")
    with pytest.raises(QuorumFailed) as failed:
        farm.insert([("k", 1, "m")])
    assert (failed.value.answered, failed.value.needed, failed.value.clusters) == (1, 2, 3)
    assert "127.0.0.1:1" in str(failed.value)
    assert open_(f"{urls[0]};{urls[1]};{DEAD}").insert([("k", 1, "n")]).applied == 1
    assert open_(f"{urls[0]};{DEAD};{DEAD}", write_quorum=1).insert([("k", 1, "o")]).applied == 1


def test_a_quorum_is_counted_for_each_key(open_: Open, three: list[Replica]) -> None:
    """Each cluster lacks another instance; yet every key is on two of three clusters."""
    a, b, _ = (replica.url for replica in three)
    keys = [(f"key-{i}", 1, "m") for i in range(20)]
    farm = open_(f"{a},{DEAD};{DEAD},{b};{a},{b}")
    farm.insert(keys)
    assert all(farm.select([key])[key] for key, _, _ in keys)
    with pytest.raises(QuorumFailed):
        open_(f"{a},{DEAD};{DEAD},{b};{a},{b}", write_quorum=3).insert(keys)


def test_an_answer_tells_which_keys_lack_a_cluster(open_: Open, three: list[Replica]) -> None:
    a, b, _ = (replica.url for replica in three)
    farm = open_(f"{a};{b},{DEAD}", write_quorum=1)
    keys = [f"key-{i}" for i in range(20)]
    farm.insert([(key, 1, "m") for key in keys])
    farm.settle()
    # Half of them differ, so that clusters are asked twice.
    for key in keys[::2]:
        three[0].client.zadd(f"{key}+", {"n": 2})
    lacking = {key for key in keys if murmur3(key.encode()) % 2 == 1}
    found = farm.select(keys)
    assert found.partial_keys == lacking
    assert len(found.failures) == 1
    assert not farm.select([key for key in keys if key not in lacking]).partial


def test_an_answer_without_all_clusters_is_marked_and_one_without_any_is_an_error(
    open_: Open, three: list[Replica]
) -> None:
    one = open_(f"{three[0].url};{DEAD}", write_quorum=1)
    one.insert([("k", 1, "m")])
    found = one.select(["k"])
    assert (found["k"], found.partial) == ([("k", 1.0, "m")], True)
    assert "127.0.0.1:1" in str(found.failures[0])
    for strategy in STRATEGIES:
        none = open_(f"{DEAD};{DEAD}", read_strategy=strategy)
        with pytest.raises(AllReplicasFailed) as failed:
            none.select(["k"])
        assert failed.value.keys == [b"k"]
        with pytest.raises(AllReplicasFailed):
            none.score([("k", "m")])


def test_a_write_only_cluster_is_written_and_repaired_but_not_read(
    open_: Open, three: list[Replica]
) -> None:
    a, b, c = (replica.url for replica in three)
    open_(a).insert([("k", 1, "before")])
    open_(c).insert([("k", 9, "unread")])
    farm = open_(f"{a};{b};{c},WRITEONLY")
    farm.insert([("k", 2, "m")])
    assert members(farm) == ["m", "before"]
    farm.settle()
    assert three[2].states(b"k").keys() == {b"m", b"before", b"unread"}


def test_every_figure_is_counted(open_: Open, three: list[Replica]) -> None:
    tally, horizon = Tally(), -5.0
    words: dict[str, Any] = {"metrics": tally, "max_size": 3, "horizon": lambda: horizon}
    a, b, _ = (replica.url for replica in three)
    open_(a, max_size=3).insert([("k", i, f"m{i}") for i in (1, 2, 3)])
    farm = open_(**words)
    farm.select(["k", "j"])
    farm.settle()
    assert tally.counts["repair_write_success"] == 6
    horizon = 3.0
    farm.insert([("k", 9, "n"), ("k", 9, "n"), ("k", 1, "o")])
    farm.insert([("k", i, f"n{i}") for i in (10, 11, 12)])
    farm.delete([("k", 12, "n12")])
    farm.repair(["k"])
    farm.settle()
    lone = open_(f"{a};{DEAD}", write_quorum=2, **words)
    for verb in (lone.insert, lone.delete):
        with pytest.raises(QuorumFailed):
            verb([("k", 20, "x")])
    lone.select(["k"])
    lone.repair(["k"])
    lone.insert([])
    open_(a, **words).insert([("k", 30, "y")])
    open_(f"{a};{b}", repair_strategy="NoRepairs", **words).select(["k"])
    for rate in (0, 9):
        # The one cluster that may be asked is down.
        farm = open_(DEAD, read_strategy="SendVarReadFirstLinger", read_rate=rate, **words)
        with pytest.raises(AllReplicasFailed):
            farm.select(["k"])
    rare = {"repair_write_failure", "repair_check_redundant"}
    assert {name for name in COUNTERS if not tally.counts[name]} == rare
    assert [name for name in DURATIONS if not tally.times[name][0]] == []
    found = {name: tally.counts[name] for name in ("insert_record_count", "write_rejected")}
    assert found == {"insert_record_count": 8, "write_rejected": 1}


def test_other_things_under_a_key_harm_that_key_alone(open_: Open, three: list[Replica]) -> None:
    farm = open_()
    for replica in three:
        replica.client.set("k+", "something else")
    with pytest.raises(QuorumFailed, match="WRONGTYPE"):
        farm.insert([("k", 1, "m")])
    with pytest.raises(AllReplicasFailed, match="WRONGTYPE"):
        farm.select(["k"])
    farm.insert([("j", 1, "m")])
    assert members(farm, "j") == ["m"]


def test_the_keys_of_an_instance_are_read_at_one_moment(open_: Open, three: list[Replica]) -> None:
    # Longer than what a server takes in at once, so that a write may come in between.
    keys = [f"{n:03d}-{'long' * 50}" for n in range(200)]
    reader, writer = open_(three[0].url), open_(three[0].url)
    writer.insert([(key, 0, "m") for key in keys])
    stop = threading.Event()

    def write() -> None:
        for score in itertools.count(1):
            if stop.is_set():
                return
            writer.insert([(key, score, "m") for key in keys])

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for _ in range(100):
                found = reader.select(keys, limit=1)
                assert len({found[key][0].score for key in keys}) == 1
        finally:
            stop.set()
        writing.result(20)


def test_functions_that_are_lost_come_back(farm: Farm, three: list[Replica]) -> None:
    farm.insert([("k", 1, "m")])
    three[0].client.execute_command("FUNCTION", "FLUSH")
    assert farm.insert([("k", 2, "n")]).applied == 1
    assert members(farm) == ["n", "m"]


def test_both_farms_have_the_same_names_and_parameters() -> None:
    names = {name for name in vars(Farm) if not name.startswith("_")}
    for name in names:
        ours, theirs = (
            inspect.signature(getattr(Farm, name)),
            inspect.signature(getattr(AsyncFarm, name)),
        )
        assert ours.parameters == theirs.parameters, name
        assert getattr(Farm, name).__doc__
        assert inspect.iscoroutinefunction(getattr(AsyncFarm, name)) == (name != "open")
    assert sorted(public.__all__) == public.__all__


def test_a_closed_farm_says_so(open_: Open) -> None:
    farm = open_()
    farm.insert([("k", 1, "m")])
    farm.close()
    farm.close()
    with pytest.raises(Exception, match="closed"):
        farm.select(["k"])
