"""Queues whose user loses the right to commands while connected: nothing is half done for long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import redis

import headwater
from headwater import AccessDenied, Group, Headwater, Queue
from tests.support.entries import entries
from tests.support.queue_books import audit, contents
from tests.support.servers import Server

pytestmark = pytest.mark.fault

LONG_MS = 600_000
VALUES = [b"%d" % number for number in range(40)]


@pytest.fixture
def fsynced_server() -> Iterator[Server]:
    with Server(fsync="always") as fsynced_server:
        yield fsynced_server


@pytest.fixture
def limited(fsynced_server: Server) -> Iterator[Headwater]:
    """Return a client of a user who has every right until a test takes some away."""
    allow(fsynced_server)
    with headwater.connect(f"unix://limited:secret@{fsynced_server.socket}") as hw:
        yield hw


def allow(fsynced_server: Server, *changes: str) -> None:
    words = ("on", ">secret", "~*", "&*", "+@all", *changes)
    with fsynced_server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "limited", *words)


def dead_letters(queue: Queue) -> None:
    queue.configure(max_attempts=1)
    queue.push_many(VALUES)
    queue.nack(*queue.pop(30, ack_ms=LONG_MS))


def test_what_was_acknowledged_does_not_come_back_by_a_repair(
    fsynced_server: Server, limited: Headwater
) -> None:
    with headwater.connect(fsynced_server.url) as hw:
        queue = hw.queue("q")
        queue.push_many(VALUES)
        held = queue.pop(40, ack_ms=LONG_MS)
        allow(fsynced_server, "-hdel")
        assert limited.queue("q").ack(*held) == 40
        fsynced_server.kill()
        fsynced_server.restart()
        hw.repair("q", dry_run=False)
        audit(hw, queue)
        assert hw.scrub("q").defects == ()
        assert queue.pop(100) == []


def test_what_was_taken_half_way_is_there_after_a_restart(
    fsynced_server: Server, limited: Headwater
) -> None:
    with headwater.connect(fsynced_server.url) as hw:
        queue = hw.queue("q")
        dead_letters(queue)
        before = contents(queue)
        allow(fsynced_server, "-zadd")
        with pytest.raises(AccessDenied):
            limited.queue("q").redrive()
        fsynced_server.kill()
        fsynced_server.restart()
        assert contents(queue) == before
        audit(hw, queue)


@pytest.mark.parametrize("flushed", [False, True])
def test_what_could_not_be_taken_back_belongs_to_that_queue_only(
    fsynced_server: Server, limited: Headwater, flushed: bool
) -> None:
    with headwater.connect(fsynced_server.url) as hw:
        dead_letters(hw.queue("q"))
        before = contents(hw.queue("q"))
    allow(fsynced_server, "-zadd", "-zincrby")
    with pytest.raises(AccessDenied):
        limited.queue("q").redrive()
    if flushed:
        with fsynced_server.client() as admin:
            admin.flushall()
        before = []
    with headwater.connect(fsynced_server.url) as hw:
        queue = hw.queue("q")
        queue.push(b"new")
        audit(hw, queue)
        assert contents(queue) == sorted([*before, (b"new", "ready", 0, 0)])
        assert hw.scrub("q").defects == ()


# ── A group of which two rights are denied at once loses no message ──────────────────────────────


FAR = 10**8


class Denied(NamedTuple):
    """A group as a user has it whose rights are changed, and as another one has it."""

    raw: redis.Redis
    own: Group
    other: Group
    admin: headwater.Headwater

    def without(self, rights: tuple[str, ...], work: Callable[[Group], object]) -> bool:
        """Do some work without some rights; returns whether that was possible."""
        self.raw.execute_command("ACL", "SETUSER", "app", *(f"-{right}" for right in rights))
        try:
            work(self.own)
        except AccessDenied:
            return False
        finally:
            self.raw.execute_command("ACL", "SETUSER", "app", *(f"+{right}" for right in rights))
        return True


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(tcp=True) as server, server.client() as raw:
        raw.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "&*")
        yield server


@pytest.fixture
def denied(server: Server, name: str) -> Iterator[Denied]:
    """A group with the messages 1 to 10 pending and 11 to 30 to come."""
    url = server.url.replace("://", "://app:pw@")
    with (
        server.client() as raw,
        headwater.connect(url) as hw,
        headwater.connect(server.url) as admin,
    ):
        admin.stream(name).write_many(entries(30))
        own = hw.stream(name).group("g")
        own.read(10, ack_ms=FAR)
        yield Denied(raw, own, admin.stream(name).group("g"), admin)


WORK: dict[str, Callable[[Group], object]] = {
    "ack": lambda group: group.ack((4, 6)),
    "nack": lambda group: group.nack((4, 6), delay_ms=FAR),
    "extend": lambda group: group.extend((4, 6), ack_ms=FAR),
}
PAIRS = [("zadd", "zincrby"), ("zrem", "zremrangebyrank"), ("zrem", "zadd"), ("zadd", "hset")]


@pytest.mark.parametrize("rights", PAIRS, ids="+".join)
@pytest.mark.parametrize("verb", WORK)
def test_what_was_pending_is_redelivered_and_counted(
    denied: Denied, rights: tuple[str, str], verb: str
) -> None:
    work = WORK[verb]
    denied.without(rights, work)
    denied.other.nack((1, 30))
    left = denied.other.info().pending
    found = [message.offset for message in denied.other.read(left, ack_ms=FAR)]
    assert len(found) == len(set(found)) == left
    missing = set(range(1, 11)) - set(found)
    assert missing in (set(), {4, 5, 6}) if verb == "ack" else missing == set()


@pytest.mark.parametrize("verb", [*WORK, "read"])
def test_without_the_right_to_count_nothing_is_lost_and_a_repair_counts_again(
    denied: Denied, verb: str
) -> None:
    work = WORK.get(verb, lambda group: group.read(5, ack_ms=FAR))
    assert not denied.without(("hset", "hmset"), work) or verb in ("nack", "extend")
    denied.admin.repair(denied.other.stream, dry_run=False)
    denied.other.nack((1, 30))
    left = denied.other.info().pending
    found = {message.offset for message in denied.other.read(left, ack_ms=FAR)}
    assert len(found) == left
    assert set(range(1, 11)) - found in (set(), {4, 5, 6})
