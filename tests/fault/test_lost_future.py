"""After a failover that lost writes, who had read or written them is told which ones."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from headwater import Headwater, LostFuture, Stream
from headwater.log.handles import diverged_at
from tests.support.entries import pairs
from tests.support.failovers import ServerPair, rows
from tests.support.servers import Server, until
from tests.support.watch import blocked

pytestmark = pytest.mark.fault

KEPT, LOST = 500, 100


class Failover(NamedTuple):
    """A stream of which the new primary has lost the end, seen by a warm and by a fresh client."""

    warm: Stream
    fresh: Stream


@pytest.fixture(params=["plain", "nodes"])
def lost(request: pytest.FixtureRequest) -> Iterator[Failover]:
    with ServerPair() as servers:
        name = secrets.token_hex(4)
        with Headwater(servers.url) as hw, Headwater(servers.old.url) as writer:
            stream = writer.stream(name)
            stream.write_many(rows("X", 1, KEPT))
            servers.copy()
            if request.param == "nodes":
                stream.write_many(rows("X", KEPT + 1, LOST))
                stream.seal()
            else:
                for row in rows("X", KEPT + 1, LOST):
                    stream.write(*row)
            warm = hw.stream(name)
            read = warm.read(1, KEPT + LOST)
            assert pairs(read) == rows("X", 1, KEPT + LOST)
            servers.fail_over()
            with Headwater(servers.new.url) as other:
                yield Failover(warm, other.stream(name))


def test_a_warm_reader_is_told_what_is_lost_and_never_reads_it_again(lost: Failover) -> None:
    for _ in range(2):
        with pytest.raises(LostFuture) as caught:
            lost.warm.read(KEPT + LOST + 1, 10)
        found = caught.value
        assert (found.stream, found.first, found.last) == (lost.warm.name, KEPT + 1, KEPT + LOST)
    assert lost.warm.read(KEPT + 1, 10) == []
    lost.fresh.write_many(rows("Y", KEPT + 1, 3 * LOST))
    assert pairs(lost.warm.read(KEPT + 1, 3 * LOST)) == rows("Y", KEPT + 1, 3 * LOST)


@pytest.mark.parametrize("written", [1, LOST // 2, LOST, 3 * LOST])
def test_a_reader_is_told_also_when_others_have_the_offsets_by_now(
    lost: Failover, written: int
) -> None:
    lost.fresh.write_many(rows("Y", KEPT + 1, written))
    with pytest.raises(LostFuture) as caught:
        lost.warm.read_from(KEPT + LOST + 1, 10)
    assert (caught.value.first, caught.value.last) == (KEPT + 1, KEPT + LOST)
    passage = lost.warm.read_from(KEPT + 1, 1000)
    assert [m.value for m in passage.messages] == [
        value for _, value in rows("Y", KEPT + 1, written)
    ]


@pytest.mark.parametrize("written", [1, LOST, 3 * LOST])
def test_the_cache_of_a_warm_reader_gives_nothing_that_was_lost(
    lost: Failover, written: int
) -> None:
    lost.fresh.write_many(rows("Y", KEPT + 1, written))
    lost.fresh.seal()
    right = rows("X", 1, KEPT) + rows("Y", KEPT + 1, written)
    assert pairs(lost.warm.group("g").read(1000)) == right
    scanned = [value for batch in lost.warm.scan() for value in batch["value"].to_pylist()]
    assert scanned == [value for _, value in right]


def test_a_reader_that_had_not_come_so_far_continues(lost: Failover) -> None:
    lost.fresh.write_many(rows("Y", KEPT + 1, 7))
    assert len(lost.fresh.read(1, KEPT)) == KEPT
    assert pairs(lost.fresh.read(KEPT + 1, 100)) == rows("Y", KEPT + 1, 7)


def test_a_producer_is_told_which_of_its_writes_are_lost() -> None:
    with ServerPair() as servers:
        name = secrets.token_hex(4)
        with Headwater(servers.url) as hw:
            stream = hw.stream(name)
            stream.write_many(rows("X", 1, 5), producer="p", sequence=1)
            servers.copy()
            stream.write_many(rows("X", 6, 5), producer="p", sequence=2)
            servers.fail_over()
            with Headwater(servers.new.url) as other:
                other.stream(name).write_many(rows("Y", 6, 20))
            with pytest.raises(LostFuture) as caught:
                stream.write_many(rows("X", 11, 5), producer="p", sequence=3)
            assert (caught.value.first, caught.value.last) == (6, 10)
            # It is written, and what was lost can be written again.
            assert stream.write_many(rows("X", 11, 5), producer="p", sequence=3) == range(26, 31)


def test_a_restart_that_loses_nothing_is_no_loss() -> None:
    with Server(fsync="always") as server, Headwater(server.url) as hw:
        stream = hw.stream("s")
        for n in range(20):
            stream.write_many(rows("X", n + 1, 1), producer="p", sequence=n)
            assert len(stream.read(n + 1, 5)) == 1
            if n % 5 == 0:
                server.kill()
                server.start()
        assert pairs(stream.read(1, 100)) == rows("X", 1, 20)


def test_a_read_that_waits_while_the_server_restarts_is_no_loss() -> None:
    with (
        Server(tcp=True, fsync="always") as server,
        Headwater(server.url) as hw,
        Headwater(server.url) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        stream = hw.stream("s")
        stream.write_many(rows("X", 1, 5))
        assert len(stream.read_from(1, 5).messages) == 5
        waiting = pool.submit(stream.read_from, 6, 5, block_ms=60_000)
        until(lambda: blocked(other))
        server.kill()
        server.start()
        until(lambda: blocked(other))
        other.stream("s").write("X", b"X6")
        assert pairs(waiting.result().messages) == rows("X", 6, 1)
        assert stream.read_from(7, 5).messages == []
        other.stream("s").write("X", b"X7")
        assert pairs(stream.read_from(7, 5).messages) == rows("X", 7, 1)


def test_histories_differ_where_the_first_of_them_was_left() -> None:
    assert diverged_at(b"", b"") == 0
    assert diverged_at(b"10:501", b"10:501") == 0
    assert diverged_at(b"10:501", b"10:501 20:601") == 601
    assert diverged_at(b"10:501 20:601", b"10:501 30:551") == 551
    assert diverged_at(b"20:601", b"15:551") == 551
    full = b" ".join(b"%d:%d" % (n, 10 * n) for n in range(2, 18))
    assert diverged_at(b"1:10 " + full.rpartition(b" ")[0], full) == 170, (
        "the oldest one is dropped"
    )
    longer = b" ".join(b"%d:%d" % (n, 10 * n) for n in range(1, 17))
    assert diverged_at(full, longer) == 170, "also when the newer history is the longer one"
