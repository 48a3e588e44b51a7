"""Queues whose user loses the right to commands while connected: nothing is half done for long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import headwater
from headwater import AccessDenied, Headwater, Queue
from tests.support.queue_books import audit, contents
from tests.support.servers import Server

pytestmark = pytest.mark.fault
LONG_MS = 600_000
VALUES = [b"%d" % number for number in range(40)]


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(fsync="always") as server:
        yield server


@pytest.fixture
def limited(server: Server) -> Iterator[Headwater]:
    """Return a client of a user who has every right until a test takes some away."""
    allow(server)
    with headwater.connect(f"unix://limited:secret@{server.socket}") as hw:
        yield hw


def allow(server: Server, *changes: str) -> None:
    words = ("on", ">secret", "~*", "&*", "+@all", *changes)
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "limited", *words)


def dead_letters(queue: Queue) -> None:
    queue.configure(max_attempts=1)
    queue.push_many(VALUES)
    queue.nack(*queue.pop(30, ack_ms=LONG_MS))


def test_what_was_acknowledged_does_not_come_back_by_a_repair(
    server: Server, limited: Headwater
) -> None:
    with headwater.connect(server.url) as hw:
        queue = hw.queue("q")
        queue.push_many(VALUES)
        held = queue.pop(40, ack_ms=LONG_MS)
        allow(server, "-hdel")
        assert limited.queue("q").ack(*held) == 40
        server.kill()
        server.restart()
        hw.repair("q", dry_run=False)
        audit(hw, queue)
        assert hw.scrub("q").defects == ()
        assert queue.pop(100) == []


def test_what_was_taken_half_way_is_there_after_a_restart(
    server: Server, limited: Headwater
) -> None:
    with headwater.connect(server.url) as hw:
        queue = hw.queue("q")
        dead_letters(queue)
        before = contents(queue)
        allow(server, "-zadd")
        with pytest.raises(AccessDenied):
            limited.queue("q").redrive()
        server.kill()
        server.restart()
        assert contents(queue) == before
        audit(hw, queue)


@pytest.mark.parametrize("flushed", [False, True])
def test_what_could_not_be_taken_back_belongs_to_that_queue_only(
    server: Server, limited: Headwater, flushed: bool
) -> None:
    with headwater.connect(server.url) as hw:
        dead_letters(hw.queue("q"))
        before = contents(hw.queue("q"))
    allow(server, "-zadd", "-zincrby")
    with pytest.raises(AccessDenied):
        limited.queue("q").redrive()
    if flushed:
        with server.client() as admin:
            admin.flushall()
        before = []
    with headwater.connect(server.url) as hw:
        queue = hw.queue("q")
        queue.push(b"new")
        audit(hw, queue)
        assert contents(queue) == sorted([*before, (b"new", "ready", 0, 0)])
        assert hw.scrub("q").defects == ()
