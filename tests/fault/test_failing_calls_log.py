"""A call of a stream's function that stops half-way: the next one completes or drops what it left.

Every call of every function fails in turn. Afterwards a client that meets no failure repeats the
operation, and the stream holds whole writes only, in order, each once, with all counts right.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from functools import partial

import pytest

from headwater import StagingGone, Stream
from headwater.log import retention, writing
from headwater.log.handles import StreamHandle
from headwater.log.inspecting import stream_profile
from headwater.log.keys import stream_key
from headwater.log.reading import borders
from headwater.log.types import Retention
from headwater.log.writing import staged_bytes
from headwater.store.call import Call, Operation
from headwater.views import overview
from tests.support.entries import entries, pairs
from tests.support.failing_calls import FailingServer, Failure, stopped
from tests.support.group_books import assert_counts_are_right
from tests.support.stagings import left_behind, table

pytestmark = pytest.mark.fault

FEW, BATCH, NODE = entries(5), entries(60), entries(600)


def new_stream(failing: FailingServer) -> Stream:
    return failing.hw.stream(f"s-{secrets.token_hex(4)}")


def rows_of(stream: Stream) -> list[tuple[str, bytes] | None]:
    return pairs(stream.read(1, 100_000))


Rows = list[tuple[str, bytes]]
WRITES: dict[str, tuple[Callable[[Stream], object], Rows]] = {
    "one message": (lambda stream: stream.write(*FEW[0]), FEW[:1]),
    "headers": (lambda stream: stream.write_many([(*row, {"a": b"1"}) for row in FEW]), FEW),
    "a few messages": (lambda stream: stream.write_many(FEW), FEW),
    "a packed batch": (lambda stream: stream.write_many(BATCH), BATCH),
    "a node": (lambda stream: stream.write_many(NODE), NODE),
    "several nodes": (lambda stream: stream.write_many(NODE * 3), NODE * 3),
}
BEFORE: dict[str, Rows] = {"nothing": [], "a sealed node": NODE, "entries": BATCH + FEW}


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("kind", WRITES)
def test_a_write_is_whole_or_not_there_and_the_next_one_works(
    failing: FailingServer, kind: str, before: str
) -> None:
    write, rows = WRITES[kind]
    there = BEFORE[before]

    def prepare() -> Stream:
        stream = new_stream(failing)
        if there:
            stream.write_many(there)
        return stream

    def check(stream: Stream, _: Failure) -> None:
        stream.write("next", b"1")
        found = rows_of(stream)
        assert found in ([*there, ("next", b"1")], [*there, *rows, ("next", b"1")])
        write(stream)
        assert rows_of(stream) == found + rows
        assert_counts_are_right(failing.server, stream)

    failing.fail_in_turn(prepare, write, check)


def test_a_node_that_nobody_noted_gives_way_to_the_next_one(failing: FailingServer) -> None:
    def prepare() -> Stream:
        stream = new_stream(failing)
        stream.write_many(NODE)
        with failing.server.client() as client:
            client.hset(f"{stream_key(stream.name)}:nodes", str(len(NODE) + 1), b"left")
        return stream

    def operate(stream: Stream) -> range:
        return stream.write_many(NODE)

    def check(stream: Stream, _: Failure) -> None:
        operate(stream)
        assert rows_of(stream) in (NODE * 2, NODE * 3)
        assert_counts_are_right(failing.server, stream)

    failing.fail_in_turn(prepare, operate, check)


def test_a_replay_is_there_once_when_it_is_repeated(failing: FailingServer) -> None:
    def prepare() -> Stream:
        stream = failing.hw.stream(f"s-{secrets.token_hex(4)}")
        stream.write_many(FEW)
        return stream

    def operate(stream: Stream) -> object:
        return failing.hw.replay(stream.name, into=f"{stream.name}-copy")

    def check(stream: Stream, _: Failure) -> None:
        operate(stream)
        copy = failing.hw.stream(f"{stream.name}-copy")
        # It completes a write that stopped after it was answered for.
        failing.hw.keep(copy.name)
        assert pairs(copy.read(1, 100)) == FEW

    failing.fail_in_turn(prepare, operate, check)


@pytest.mark.parametrize("kind", ["a few messages", "a packed batch", "a node", "several nodes"])
def test_a_producers_write_is_there_once_when_it_is_repeated(
    failing: FailingServer, kind: str
) -> None:
    _, rows = WRITES[kind]

    def prepare() -> Stream:
        stream = new_stream(failing)
        stream.write_many(NODE, producer="p", sequence=1)
        return stream

    def operate(stream: Stream) -> range:
        return stream.write_many(rows, producer="p", sequence=2)

    def check(stream: Stream, failure: Failure) -> None:
        # Somebody else may come first; it must not take the offsets that are answered then.
        if failure.lasting:
            stream.write("other", b"1")
        offsets = operate(stream)
        assert pairs(stream.read(offsets.start, len(offsets))) == rows
        assert operate(stream) == offsets
        stream.write_many(FEW, producer="p", sequence=3)
        found = [row for row in rows_of(stream) if row != ("other", b"1")]
        assert found == NODE + rows + FEW
        assert stream.newest_sequence("p") == 3
        assert_counts_are_right(failing.server, stream)

    failing.fail_in_turn(prepare, operate, check)


def test_a_reader_who_waits_sees_no_part_of_a_write(failing: FailingServer) -> None:
    def check(stream: Stream, _: Failure) -> None:
        found = pairs(stream.read(1, 100, block_ms=5))
        assert found in ([], FEW)
        stream.write("next", b"1")
        assert rows_of(stream) == [*found, ("next", b"1")]

    failing.fail_in_turn(lambda: new_stream(failing), lambda stream: stream.write_many(FEW), check)


def test_what_was_staged_is_published_once(failing: FailingServer) -> None:
    def prepare() -> Stream:
        stream = new_stream(failing)
        stream.write_many(FEW)
        for name, rows in (("x", NODE), ("y", FEW), ("z", NODE * 3)):
            stream.stage(table(rows), name)
        stream.stage(table(NODE), "y", place=1)
        return stream

    def operate(stream: Stream) -> object:
        return stream.publish("x", "y", "z", producer="p", sequence=1)

    def check(stream: Stream, failure: Failure) -> None:
        if failure.lasting:
            stream.write("other", b"1")
        first = operate(stream)
        assert operate(stream) == first
        found = [row for row in rows_of(stream) if row != ("other", b"1")]
        assert found == FEW + NODE + FEW + NODE * 4
        assert left_behind(failing.hw, stream.name) == set()
        assert_counts_are_right(failing.server, stream)

    failing.fail_in_turn(prepare, operate, check)


def test_a_stage_is_repeated_and_always_has_an_end(failing: FailingServer) -> None:
    def operate(stream: Stream) -> object:
        stream.stage(table(NODE * 3), "x")
        return failing.hw.store.run(staged_bytes(StreamHandle(stream.name, set())))

    def check(stream: Stream, _: Failure) -> None:
        operate(stream)
        stream.publish("x", producer="p", sequence=1)
        assert rows_of(stream) == NODE * 3

    failing.fail_in_turn(lambda: new_stream(failing), operate, check)

    def drop(stream: Stream) -> object:
        return stream.unstage("x")

    def prepare() -> Stream:
        stream = new_stream(failing)
        operate(stream)
        return stream

    def check_dropped(stream: Stream, _: Failure) -> None:
        drop(stream)
        assert left_behind(failing.hw, stream.name) == set()

    failing.fail_in_turn(prepare, drop, check_dropped)


@pytest.mark.parametrize("place", ["15-append.lua XADD", "15-append.lua HSET"])
@pytest.mark.parametrize("kind", ["a few messages", "several nodes"])
@pytest.mark.parametrize("before", ["nothing", "a sealed node", "entries"])
def test_a_completion_that_stops_is_completed(
    failing: FailingServer, kind: str, place: str, before: str
) -> None:
    _, rows = WRITES[kind]
    there, after = BEFORE[before], [("next", b"1")]

    def prepare() -> Stream:
        stream = new_stream(failing)
        if there:
            stream.write_many(there)
        return stream

    def write(stream: Stream) -> object:
        return stream.write_many(rows, producer="p", sequence=1)

    def check(stream: Stream, _: Failure) -> None:
        found = rows_of(stream)
        whole = there + rows if place.endswith("HSET") else there
        assert found in (there, whole, whole + after)
        stream.write("next", b"1")
        assert rows_of(stream) in (whole + after, whole + after + after)
        write(stream)
        assert len(rows_of(stream)) - len(there) - len(rows) in (1, 2)
        assert_counts_are_right(failing.server, stream)

    failing.fail_in_turn(
        lambda: stopped(failing, prepare, write, place),
        lambda stream: stream.write("next", b"1"),
        check,
    )


def test_a_publish_that_stops_twice_is_there_once(failing: FailingServer) -> None:
    def prepare() -> Stream:
        stream = new_stream(failing)
        stream.write_many(FEW)
        for name, rows in (("x", FEW), ("y", NODE)):
            stream.stage(table(rows), name)
        return stream

    def publish(stream: Stream) -> object:
        return stream.publish("x", "y", producer="p", sequence=1)

    def check(stream: Stream, _: Failure) -> None:
        publish(stream)
        assert rows_of(stream) == FEW + FEW + NODE
        assert left_behind(failing.hw, stream.name) == set()
        assert_counts_are_right(failing.server, stream)

    for place in ("stream_publish.lua HSET", "stream_publish.lua PERSIST", "15-append.lua HSET"):
        again = partial(stopped, failing, prepare, publish, place)
        failing.fail_in_turn(again, publish, check)


def test_a_publish_whose_staging_is_gone_before_it_is_marked_is_dropped(
    failing: FailingServer,
) -> None:
    def prepare() -> Stream:
        stream = new_stream(failing)
        for name in ("x", "y"):
            stream.stage(table(FEW), name)
        return stream

    def publish(stream: Stream) -> object:
        return stream.publish("x", "y", producer="p", sequence=1)

    def lost() -> Stream:
        stream = stopped(failing, prepare, publish, "stream_publish.lua PERSIST")
        with failing.server.client() as raw:
            raw.delete(f"{stream_key(stream.name)}:staged:y")
        return stream

    def operate(stream: Stream) -> None:
        with contextlib.suppress(StagingGone):
            publish(stream)

    def check(stream: Stream, _: Failure) -> None:
        operate(stream)
        assert rows_of(stream) == []
        assert left_behind(failing.hw, stream.name) == set()

    failing.fail_in_turn(lost, operate, check)


def test_an_eviction_of_a_node_whose_row_is_damaged_is_repeated(failing: FailingServer) -> None:
    def prepare() -> Stream:
        stream = new_stream(failing)
        stream.write_many(NODE)
        stream.write_many(NODE)
        index = f"{stream_key(stream.name)}:index"
        with failing.server.client() as raw:
            ((member, score),) = raw.zrange(index, 0, 0, withscores=True)
            raw.zrem(index, member)
            raw.zadd(index, {b"?" + member: score})
        return stream

    def check(stream: Stream, _: Failure) -> None:
        stream.evict(600)
        assert pairs(stream.read(601, 5000)) == NODE
        assert_counts_are_right(failing.server, stream)

    failing.fail_in_turn(prepare, lambda stream: stream.evict(600), check)


def sealable(failing: FailingServer) -> Stream:
    stream = new_stream(failing)
    for at in range(0, 1500, 60):
        stream.write_many(entries(1500)[at : at + 60])
    return stream


def test_a_seal_changes_no_message_and_no_count(failing: FailingServer) -> None:
    def operate(stream: Stream) -> object:
        return stream.seal()

    def check(stream: Stream, failure: Failure) -> None:
        assert rows_of(stream) == entries(1500)
        if failure.lasting:
            stream.write_many(NODE)
        operate(stream)
        assert rows_of(stream)[:1500] == entries(1500)
        assert stream.info().sealed == stream.info().last
        assert_counts_are_right(failing.server, stream)

    failing.fail_in_turn(lambda: sealable(failing), operate, check)


@pytest.mark.parametrize("limit", [700, 1300, 1800, 2395])
def test_an_eviction_is_exact_and_frees_what_it_counts(failing: FailingServer, limit: int) -> None:
    rows = NODE * 3 + BATCH * 10

    def prepare() -> Stream:
        stream = new_stream(failing)
        for _ in range(3):
            stream.write_many(NODE)
        for _ in range(10):
            stream.write_many(BATCH)
        return stream

    def operate(stream: Stream) -> object:
        return stream.evict(limit)

    def check(stream: Stream, _: Failure) -> None:
        assert pairs(stream.read(limit + 1, 5000)) == rows[limit:]
        operate(stream)
        assert pairs(stream.read(1, 5000)) == [None] * limit + rows[limit:]
        assert_counts_are_right(failing.server, stream)
        stream.seal()
        stream.write_many(NODE)
        assert pairs(stream.read(1, 5000)) == [None] * limit + rows[limit:] + NODE
        assert_counts_are_right(failing.server, stream)

    failing.fail_in_turn(prepare, operate, check)


def test_an_eviction_after_a_seal_that_stopped_counts_right(failing: FailingServer) -> None:
    def check(stream: Stream, _: Failure) -> None:
        stream.evict(1200)
        assert pairs(stream.read(1201, 5000)) == entries(1500)[1200:]
        stream.seal()
        assert pairs(stream.read(1201, 5000)) == entries(1500)[1200:]
        assert_counts_are_right(failing.server, stream)

    failing.fail_in_turn(lambda: sealable(failing), lambda stream: stream.seal(), check)


def test_retention_and_its_policy_are_set_together(failing: FailingServer) -> None:
    def prepare() -> Stream:
        stream = new_stream(failing)
        for _ in range(3):
            stream.write_many(NODE)
        stream.write_many(BATCH)
        stream.group("g").read(5000)
        stream.register_reader("r", 1700)
        return stream

    def operate(stream: Stream) -> object:
        return stream.retain(max_count=100, max_age_ms=10**12, max_bytes=3000)

    def check(stream: Stream, _: Failure) -> None:
        policy = stream.info().retention
        assert (policy.max_count, policy.max_bytes) in ((None, None), (100, 3000))
        operate(stream)
        assert stream.info().length >= 0
        assert_counts_are_right(failing.server, stream)

    failing.fail_in_turn(prepare, operate, check)


def compactable(failing: FailingServer) -> Stream:
    stream = new_stream(failing)
    for _ in range(3):
        stream.write_many([(f"tag-{n % 50}", b"%d" % n) for n in range(600)])
    return stream


LAST = {f"tag-{n % 50}": b"%d" % n for n in range(600)}


def last_of_tags(stream: Stream) -> dict[str, bytes]:
    return {m.tag: m.value for m in stream.read(1, 10_000) if m is not None}


def test_a_compaction_loses_no_tag_and_counts_right(failing: FailingServer) -> None:
    def operate(stream: Stream) -> object:
        return stream.compact()

    def check(stream: Stream, _: Failure) -> None:
        assert last_of_tags(stream) == LAST
        assert last_of_tags(failing.hw.stream(stream.name)) == LAST
        operate(stream)
        assert last_of_tags(stream) == LAST
        assert stream.info().length == 50
        assert_counts_are_right(failing.server, stream)
        stream.evict(1_790)
        assert_counts_are_right(failing.server, stream)

    failing.fail_in_turn(lambda: compactable(failing), operate, check)


def test_a_node_that_is_being_replaced_is_read_and_evicted(failing: FailingServer) -> None:
    def prepare() -> Stream:
        return stopped(
            failing, lambda: compactable(failing), lambda s: s.compact(), "17-replace.lua HSET"
        )

    def operate(stream: Stream) -> object:
        assert last_of_tags(failing.hw.stream(stream.name)) == LAST
        return stream.evict(-20)

    def check(stream: Stream, _: Failure) -> None:
        operate(stream)
        assert stream.info().length >= 20
        assert_counts_are_right(failing.server, stream)

    failing.fail_in_turn(prepare, operate, check)


def test_an_eviction_by_count_knows_of_holes(failing: FailingServer) -> None:
    def prepare() -> Stream:
        stream = compactable(failing)
        stream.compact()
        stream.write_many(NODE)
        return stream

    def check(stream: Stream, _: Failure) -> None:
        stream.evict(-620)
        assert stream.info().length >= 620
        assert_counts_are_right(failing.server, stream)

    failing.fail_in_turn(prepare, lambda stream: stream.evict(-620), check)


def test_a_publish_of_an_older_release_is_finished(failing: FailingServer) -> None:
    def prepare() -> Stream:
        stream = new_stream(failing)
        stream.stage(table(FEW), "x")
        key = stream_key(stream.name)
        with failing.server.client() as raw:
            raw.hset(f"{key}:staged:x", "begun", 1)
            raw.rpush(f"{key}:publish:p", "x")
            raw.hset(f"{key}:publishing", "p", "1:1:0:0:1700000000000")
        return stream

    def operate(stream: Stream) -> object:
        return stream.publish(producer="p", sequence=1)

    def check(stream: Stream, _: Failure) -> None:
        operate(stream)
        assert rows_of(stream) == FEW

    failing.fail_in_turn(prepare, operate, check)


def test_cooling_changes_no_message(failing: FailingServer) -> None:
    def operate(stream: Stream) -> object:
        return stream.seal()

    def check(stream: Stream, _: Failure) -> None:
        before = rows_of(stream)
        assert len(before) == 1800
        operate(stream)
        assert rows_of(failing.hw.stream(stream.name)) == before
        assert_counts_are_right(failing.server, stream)

    failing.fail_in_turn(lambda: compactable(failing), operate, check)


def test_a_deletion_is_repeated_and_leaves_nothing(failing: FailingServer) -> None:
    def prepare() -> Stream:
        stream = sealable(failing)
        stream.write_many(FEW, producer="p", sequence=1)
        stream.register_reader("r", 3)
        for name in ("x", "y"):
            stream.stage(table(NODE), name)
        begin = Call("hw_stream_publish", stream_key(stream.name), ("q", 1, "x", "y"))
        failing.hw.store.run(one(begin))
        return stream

    def operate(stream: Stream) -> object:
        return stream.delete()

    def check(stream: Stream, _: Failure) -> None:
        if stream.info().last:
            assert rows_of(stream) == entries(1500) + FEW
        operate(stream)
        with failing.server.client() as raw:
            assert raw.keys(f"*{{{stream.name}}}*") == []
        assert stream.name not in failing.hw.streams()
        assert stream.write("t", b"v") == 1

    failing.fail_in_turn(prepare, operate, check)


def with_many_publishes(failing: FailingServer) -> Stream:
    """Return a stream whose producers p0, p1, ... have each begun a publish of one staging."""
    stream = new_stream(failing)
    stream.write_many(FEW)
    key = stream_key(stream.name)
    with failing.server.client() as raw, raw.pipeline() as pipe:
        for n in range(5):
            pipe.hset(f"{key}:publishing", f"p{n}", "1:1:0:0:0:1:1")
            pipe.rpush(f"{key}:publish:p{n}", f"s{n}")
            pipe.hset(f"{key}:staged:s{n}", mapping={"n": 1, "begun": 1})
        pipe.execute()
    return stream


def test_a_deletion_of_many_publishes_is_repeated_and_leaves_nothing(
    failing: FailingServer,
) -> None:
    def operate(stream: Stream) -> object:
        failing.hw.store.run(one(Call("hw_stream_delete", stream_key(stream.name))))
        # A producer publishes to the new stream while the old one is freed.
        stream.stage(table(FEW), "new")
        stream.publish("new", producer="p3", sequence=1)
        return failing.hw.store.run(retention.free(StreamHandle(stream.name, set())))

    def check(stream: Stream, _: Failure) -> None:
        stream.delete()
        with failing.server.client() as raw:
            left = set(raw.keys(f"*{{{stream.name}}}*"))
            key = stream_key(stream.name).encode()
            assert set(raw.zrange(key + b":stagings", 0, -1)) <= {b"new"}
        # Of a publish that stopped before it was begun: its producer repeats it.
        assert left <= {key + word for word in (b":staged:new", b":stagings", b":publish:p3")}

    failing.fail_in_turn(lambda: with_many_publishes(failing), operate, check)


def one(call: Call) -> Operation[object]:
    return (yield call)


def test_upkeep_and_looks_are_repeated(failing: FailingServer) -> None:
    def prepare() -> Stream:
        stream = compactable(failing)
        stream.write_many(FEW, producer="p", sequence=1)
        stream.group("g").read(5000)
        return stream

    def operate(stream: Stream) -> object:
        stream.register_reader("r", 3)
        stream.info()
        stream.forget_reader("r")
        stream.auto_compact()
        stream.offset_at(0)
        stream.newest_sequence("p")
        stream.write_many(FEW, producer="p", sequence=1)
        handle = StreamHandle(stream.name, set())
        failing.hw.store.run(borders(stream.name, 1, 1800, 1, 2))
        for sample in (1, 100):
            failing.hw.store.run(stream_profile(stream.name, 700, 10_000, sample))
        failing.hw.store.run(retention.preview(handle.key, Retention(max_bytes=0, max_age_ms=0)))
        failing.hw.store.run(overview.look_together([stream.name]))
        failing.hw.store.run(retention.tidy(handle.key, 0, 0))
        failing.hw.store.run(writing.finish_left(handle, 0))
        return failing.hw.store.run(retention.keep(handle))

    def check(stream: Stream, _: Failure) -> None:
        operate(stream)
        assert stream.info().readers == {}
        assert stream.newest_sequence("p") is None, "it was forgotten"
        assert stream.info().length == 50
        assert_counts_are_right(failing.server, stream)

    failing.fail_in_turn(prepare, operate, check)


def test_a_topic_is_opened_and_deleted_whole(failing: FailingServer) -> None:
    def prepare() -> str:
        return f"t-{secrets.token_hex(4)}"

    def operate(name: str) -> object:
        topic = failing.hw.topic(name, partitions=2)
        topic.write_many(FEW)
        topic.info()
        assert name in failing.hw.topics()
        return topic.delete()

    def check(name: str, _: Failure) -> None:
        operate(name)
        assert name not in failing.hw.topics()
        with failing.server.client() as raw:
            assert raw.keys(f"*{{{name}*") == []

    failing.fail_in_turn(prepare, operate, check)
