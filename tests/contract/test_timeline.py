"""A timeline is a last-writer-wins set, newest first, by both farms and on every server."""

from __future__ import annotations

import base64
import itertools
import math
import os
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater import AllReplicasFailed, HeadwaterError, InvalidInput, QuorumFailed
from headwater.store.library import NAME, name_in_server
from headwater.timeline import Cursor, Farm, State, Written
from headwater.timeline.farm.reading import READ_STRATEGIES
from headwater.timeline.pool import murmur3
from headwater.timeline.records import merge
from tests.contract.test_timeline_model import MEMBERS, SCORES, Operation, in_order
from tests.support.api import ApiClient, ApiServer
from tests.support.examples import MODEL_SETTINGS, patient
from tests.support.farms import DEAD, OpenFarm, Replica, members, one_each, replicas
from tests.support.resp import RespServer
from tests.support.servers import Server
from tests.support.stores import Stores


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
    "words", [{"offset": -1}, {"limit": 0}, {"limit": -1}, {"limit": 2_000_000}, {"offset": "1"}]
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


def test_a_closed_farm_says_so(open_: OpenFarm) -> None:
    farm = open_()
    farm.insert([("k", 1, "m")])
    farm.close()
    farm.close()
    with pytest.raises(Exception, match="closed"):
        farm.select(["k"])


# ── A farm writes to a quorum of its clusters, and reads from them by one of its strategies ──────


@pytest.mark.parametrize("strategy", READ_STRATEGIES)
def test_every_read_strategy_gives_the_same_of_clusters_that_agree(
    open_: OpenFarm, strategy: str
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
    open_: OpenFarm, three: list[Replica]
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


def test_an_answer_tells_which_keys_lack_a_cluster(open_: OpenFarm, three: list[Replica]) -> None:
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
    open_: OpenFarm, three: list[Replica]
) -> None:
    one = open_(f"{three[0].url};{DEAD}", write_quorum=1)
    one.insert([("k", 1, "m")])
    found = one.select(["k"])
    assert (found["k"], found.partial) == ([("k", 1.0, "m")], True)
    assert "127.0.0.1:1" in str(found.failures[0])
    for strategy in READ_STRATEGIES:
        none = open_(f"{DEAD};{DEAD}", read_strategy=strategy)
        with pytest.raises(AllReplicasFailed) as failed:
            none.select(["k"])
        assert failed.value.keys == [b"k"]
        with pytest.raises(AllReplicasFailed):
            none.score([("k", "m")])


def test_the_keys_of_an_instance_are_read_at_one_moment(
    open_: OpenFarm, three: list[Replica]
) -> None:
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
        writing.result(60)


def test_a_write_needs_its_quorum(open_: OpenFarm, three: list[Replica]) -> None:
    urls = [replica.url for replica in three]
    farm = open_(f"{urls[0]};{DEAD};{DEAD}")
    with pytest.raises(QuorumFailed) as failed:
        farm.insert([("k", 1, "m")])
    assert (failed.value.answered, failed.value.needed, failed.value.clusters) == (1, 2, 3)
    assert "127.0.0.1:1" in str(failed.value)
    assert open_(f"{urls[0]};{urls[1]};{DEAD}").insert([("k", 1, "n")]).applied == 1
    assert open_(f"{urls[0]};{DEAD};{DEAD}", write_quorum=1).insert([("k", 1, "o")]).applied == 1


def test_a_quorum_is_counted_for_each_key(open_: OpenFarm, three: list[Replica]) -> None:
    """Each cluster lacks another instance; yet every key is on two of three clusters."""
    a, b, _ = (replica.url for replica in three)
    keys = [(f"key-{i}", 1, "m") for i in range(20)]
    farm = open_(f"{a},{DEAD};{DEAD},{b};{a},{b}")
    farm.insert(keys)
    assert all(farm.select([key])[key] for key, _, _ in keys)
    with pytest.raises(QuorumFailed):
        open_(f"{a},{DEAD};{DEAD},{b};{a},{b}", write_quorum=3).insert(keys)


def test_a_write_only_cluster_is_written_and_repaired_but_not_read(
    open_: OpenFarm, three: list[Replica]
) -> None:
    a, b, c = (replica.url for replica in three)
    open_(a).insert([("k", 1, "before")])
    open_(c).insert([("k", 9, "unread")])
    farm = open_(f"{a};{b};{c},WRITEONLY")
    farm.insert([("k", 2, "m")])
    assert members(farm) == ["m", "before"]
    farm.settle()
    assert three[2].states(b"k").keys() == {b"m", b"before", b"unread"}


def test_other_things_under_a_key_harm_that_key_alone(
    open_: OpenFarm, three: list[Replica]
) -> None:
    farm = open_()
    for replica in three:
        replica.client.set("k+", "something else")
    with pytest.raises(QuorumFailed, match="WRONGTYPE"):
        farm.insert([("k", 1, "m")])
    with pytest.raises(AllReplicasFailed, match="WRONGTYPE"):
        farm.select(["k"])
    farm.insert([("j", 1, "m")])
    assert members(farm, "j") == ["m"]


# ── Timelines over HTTP and RESP show the result of the merge rule over all operations ───────────

# The merge rule itself is tested elsewhere; here it is HTTP and RESP.
SHORT = settings(MODEL_SETTINGS, max_examples=15)
TRIED = MODEL_SETTINGS if "HEADWATER_EXAMPLES" in os.environ else SHORT
OPERATIONS = st.lists(
    st.builds(Operation, MEMBERS, st.builds(State, SCORES, st.booleans())), min_size=1, max_size=14
)
Shown = list[tuple[bytes, float]]


class Timelines(Protocol):
    """What a door offers of timelines."""

    def apply(self, key: str, operation: Operation) -> None:
        """Insert or delete a member."""

    def select(self, key: str, limit: int, after: tuple[bytes, float] | None = None) -> Shown:
        """Return members and scores, the newest first, behind one of them."""


class OverHttp(NamedTuple):
    client: ApiClient

    def apply(self, key: str, operation: Operation) -> None:
        member, state = operation
        record = {
            "key": key,
            "score": state.score,
            "member": base64.b64encode(member).decode(),
            "member_encoding": "base64",
        }
        verb = "delete" if state.deleted else "insert"
        assert self.client.post("/v1/timelines", {verb: [record]}).status == 200

    def select(self, key: str, limit: int, after: tuple[bytes, float] | None = None) -> Shown:
        path = f"/v1/timelines/{key}?limit={limit}"
        if after is not None:
            # Whoever pages over HTTP goes on by the cursor of the last record.
            records = self.client.get(f"/v1/timelines/{key}?limit=100").body["records"]
            (cursor,) = (one["cursor"] for one in records if _record(one) == after)
            path += f"&start={cursor}"
        found = self.client.get(path).body
        assert found["failures"] == []
        return [_record(one) for one in found["records"]]


def _record(view: dict[str, str]) -> tuple[bytes, float]:
    text = view["member"]
    member = base64.b64decode(text) if view.get("member_encoding") else text.encode()
    return member, float(view["score"])


class ByResp(NamedTuple):
    door: RespServer

    def apply(self, key: str, operation: Operation) -> None:
        member, state = operation
        command = "TLDELETE" if state.deleted else "TLINSERT"
        with self.door.redis(single_connection_client=True) as client:
            client.execute_command(command, key, repr(state.score), member)

    def select(self, key: str, limit: int, after: tuple[bytes, float] | None = None) -> Shown:
        words = [] if after is None else ["START", repr(after[1]), after[0]]
        with self.door.redis(single_connection_client=True) as client:
            flat = client.execute_command("TLSELECT", key, "LIMIT", limit, *words)
        return [(member, float(score)) for member, score in zip(flat[::2], flat[1::2], strict=True)]


@pytest.fixture(scope="module", params=["http", "resp"])
def timelines(request: pytest.FixtureRequest, stores: Stores) -> Iterator[Timelines]:
    url = stores.url("plain")
    with Server() as server:
        farm = one_each(replicas(server, 2))
        if request.param == "http":
            with ApiServer(url, farm=farm) as api:
                yield OverHttp(api.client())
        else:
            with RespServer(url, farm=farm) as door:
                yield ByResp(door)


@patient
def test_any_operations_in_any_order_are_shown_as_the_law_says(timelines: Timelines) -> None:
    @TRIED
    @given(OPERATIONS, st.integers(1, 4))
    def obeys(operations: list[Operation], limit: int) -> None:
        key = f"model-{secrets.token_hex(6)}"
        for operation in operations:
            timelines.apply(key, operation)
        states = merge({one.member: one.state} for one in operations)
        expected = [(one.member, one.score) for one in in_order(key.encode(), states)]
        assert timelines.select(key, 100) == expected
        pages: Shown = []
        while page := timelines.select(key, limit, pages[-1] if pages else None):
            pages += page
        assert pages == expected, "pages line up"

    obeys()
