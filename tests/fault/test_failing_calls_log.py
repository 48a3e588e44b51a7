"""A call of a stream's function that stops half-way: the next one completes or drops what it left.

Every call of every function fails in turn. Afterwards a client that meets no failure repeats the
operation, and the stream holds whole writes only, in order, each once, with all counts right.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from headwater import StagingGone, Stream
from headwater.log.handles import StreamHandle
from headwater.log.keys import stream_key
from headwater.log.writing import staged_bytes
from tests.support.entries import entries, pairs
from tests.support.failing_calls import FailingServer, Failure, stopped
from tests.support.recounting import assert_counts_are_right
from tests.support.stagings import left_behind, table

pytestmark = pytest.mark.fault

FEW, BATCH, NODE = entries(5), entries(60), entries(600)


@pytest.fixture(scope="module")
def failing() -> Iterator[FailingServer]:
    with FailingServer() as server:
        yield server


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
