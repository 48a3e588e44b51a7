"""A group of which two rights are denied at once loses no message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import redis

import headwater
from headwater import AccessDenied, Group
from tests.support.entries import entries
from tests.support.servers import Server

pytestmark = pytest.mark.fault

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
