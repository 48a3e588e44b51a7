"""States of a group in which something is done to it while calls fail."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headwater import Group, Headwater, Stream
from headwater.kernel.failures import Failure
from headwater.log.keys import group_key, stream_key
from headwater.store.call import Call, Operation
from tests.support.watch import let_pass, server_ms

FAR = 10**8
MESSAGES = 12


@dataclass
class GroupCase:
    """A stream with a group; ``seen`` reached a reader for good, ``over`` must not come again.

    ``dead`` letters cannot be redriven, because their messages are evicted.
    """

    hw: Headwater
    name: str = field(default_factory=lambda: f"s-{secrets.token_hex(4)}")
    seen: list[int] = field(default_factory=list)
    over: set[int] = field(default_factory=set)
    options: dict[str, Any] = field(default_factory=dict)
    dead: int = 0

    @property
    def stream(self) -> Stream:
        return self.hw.stream(self.name)

    @property
    def group(self) -> Group:
        return self.stream.group("g", **self.options)

    @property
    def key(self) -> str:
        return stream_key(self.name)

    @property
    def group_key(self) -> str:
        return group_key(self.key, "g")

    def read(self, count: int, ack_ms: int | None = FAR, expire_ms: int | None = None) -> None:
        """Read; without a retry what comes is done."""
        found = self.group.read(count, ack_ms=ack_ms, expire_ms=expire_ms)
        if ack_ms is None:
            self.seen += [message.offset for message in found]

    def raw(self, *words: Any) -> Any:
        """Run a command on the server."""
        return self.hw.store.command(*words)[0]

    def call(self, function: str, *args: Any) -> Any:
        """Call a function."""

        def ask() -> Operation[Any]:
            return (yield Call(function, self.key, args, repeatable=True))

        return self.hw.store.run(ask())

    def wait(
        self, waiter: str, ack_ms: int | None = FAR, wait_ms: int = FAR, number: int = 1
    ) -> Any:
        """Register a waiter, as a blocked read does; returns what lay in its box."""
        retry = "" if ack_ms is None else ack_ms
        args = ("g", "m", 2, retry, "", "first", "", "", waiter, wait_ms, number, "", 10**6)
        return self.call("hw_group_read", *args)[8]

    def unbox(self, waiter: str) -> None:
        """Take what lies in the box of a waiter, as whoever blocks on it does."""
        while text := self.raw("LPOP", f"{self.group_key}:box:{waiter}"):
            head = text.partition(b"\n")[0]
            if head.startswith(b"n"):
                for claim in head[1:].split(b","):
                    first, last, _ = map(int, claim.split(b":"))
                    self.seen += range(first, last + 1)


Deed: TypeAlias = Callable[[GroupCase], object]


def started(case: GroupCase) -> None:
    """Write the messages and create the group, at the first."""
    for n in range(MESSAGES):
        case.stream.write("t", b"%d" % n)
    case.group.read(0)


def has_read(case: GroupCase) -> None:
    """Half of the messages are pending, as one range."""
    started(case)
    case.read(6)


def has_fragments(case: GroupCase) -> None:
    """Some of what was read is acknowledged, and the rest is due."""
    has_read(case)
    case.group.ack(2, 5)
    case.over |= {2, 5}
    case.group.nack((1, 6))


def lost_some(case: GroupCase) -> None:
    """Messages that are due were evicted, and some that were never delivered."""
    has_fragments(case)
    case.stream.evict(8)
    case.over |= set(range(1, 9))


def has_expired(case: GroupCase) -> None:
    """What was read has expired, and nobody has looked since."""
    started(case)
    case.read(3)
    case.read(3, expire_ms=1)
    let_pass(case.hw, 1)
    if not case.options:
        case.over |= {4, 5, 6}


def keeps_letters(case: GroupCase) -> None:
    """As before, and what expires goes to dead letters."""
    case.options = {"dead_letters": True}
    has_expired(case)


def has_marked(case: GroupCase) -> None:
    """What has expired is found, and not buried yet."""
    keeps_letters(case)
    case.call("hw_group_expire", "g", 0)


def has_begun_to_bury(case: GroupCase) -> None:
    """A batch is noted, and its writer is gone."""
    has_marked(case)
    case.call("hw_group_bury", "g", "", 0, 1000)


def has_letters(case: GroupCase) -> None:
    """What has expired is buried."""
    keeps_letters(case)
    case.group.bury()


def has_old_letters(case: GroupCase) -> None:
    """Some messages of the letters are evicted."""
    has_letters(case)
    case.stream.evict(4)
    case.over |= {1, 2, 3, 4}
    case.dead = 1


def pending_again(case: GroupCase) -> None:
    """Some messages of the letters were read again, after a seek."""
    has_letters(case)
    case.group.seek(2)
    case.over |= {1}
    case.read(3)


def turned_off(case: GroupCase) -> None:
    """Dead letters are wanted no longer."""
    case.options = {"dead_letters": False}
    case.over |= {4, 5, 6}
    case.read(1)


def has_failed(case: GroupCase) -> None:
    """Two messages have failed, and are due again."""
    case.options = {"dead_letters": True}
    has_read(case)
    case.group.fail(Failure(2, "no", 0, 5), Failure(4, ValueError("no"), 0))


def failed_then_expired(case: GroupCase) -> None:
    """What has failed has expired since, and is marked to be buried."""
    keeps_letters(case)
    case.group.fail(Failure(4, "no", FAR), Failure(6, "no", FAR))
    case.call("hw_group_expire", "g", 0)


def given_up(case: GroupCase) -> None:
    """Messages were given up by a worker, and one of them had failed before."""
    has_failed(case)
    case.group.bury(2, 3, error="never")


def nobody_waits(case: GroupCase) -> None:
    """All was read, so that whoever comes has to wait."""
    started(case)
    case.read(MESSAGES, ack_ms=None)


def one_waits(ack_ms: int | None) -> Deed:
    def prepare(case: GroupCase) -> None:
        nobody_waits(case)
        case.wait("w1", ack_ms)

    return prepare


def two_wait(case: GroupCase) -> None:
    one_waits(FAR)(case)
    case.wait("w2")


def one_is_gone(case: GroupCase) -> None:
    """The first in line died long ago."""
    one_waits(FAR)(case)
    case.raw("HSET", case.group_key, "w:w1", "1:2:5000::1")
    case.wait("w2")


def served(ack_ms: int | None) -> Deed:
    """A message lies in the box of somebody."""

    def prepare(case: GroupCase) -> None:
        one_waits(ack_ms)(case)
        case.stream.write("t", b"boxed")

    return prepare


def served_long_ago(ack_ms: int | None) -> Deed:
    """A message lies in the box of somebody who died."""

    def prepare(case: GroupCase) -> None:
        served(ack_ms)(case)
        case.group.info()
        case.call("hw_group_postpone", "g", FAR, MESSAGES + 50, MESSAGES + 50)
        case.raw("ZADD", f"{case.group_key}:served", server_ms(case.hw) - 10_000, "w1")

    return prepare


def crowded(case: GroupCase) -> None:
    """More groups than are freed in one call."""
    started(case)
    for n in range(70):
        case.stream.group(f"other-{n}").read(1)


def forgotten(case: GroupCase) -> None:
    """Nobody has read in the group for long, and retention waits for it no longer."""
    has_read(case)
    case.raw("DEL", f"{case.group_key}:members")
    case.raw("HSET", case.group_key, "created", 1)
    case.stream.retain(max_count=4, max_idle_ms=60_000)
    case.over |= set(range(1, 9))


def torn(case: GroupCase) -> None:
    """A call was stopped before it had set all deadlines."""
    has_fragments(case)
    case.raw("ZREM", f"{case.group_key}:due", 1)
    case.raw("ZADD", f"{case.group_key}:expired", 6, 6)
    case.raw("HSET", case.group_key, "torn", 1)


def unbooked(case: GroupCase) -> None:
    """A range was removed, and what came in its place could only be noted."""
    has_read(case)
    (member,) = case.raw("ZRANGE", f"{case.group_key}:pending", 0, 0)
    case.raw("ZREM", f"{case.group_key}:pending", member)
    case.raw("HSET", case.group_key, "torn", 1, "unbooked", member + b" ")


def left_seeking(case: GroupCase) -> None:
    """A seek to offset 4 was stopped half-way."""
    has_fragments(case)
    case.raw("HSET", case.group_key, "seeking", 4)
    case.over = {1, 2, 3}


def has_strays(case: GroupCase) -> None:
    """Deadlines are left of ranges that are gone."""
    has_expired(case)
    case.raw("ZADD", f"{case.group_key}:due", 1, 11)
    case.raw("ZADD", f"{case.group_key}:expired", 12, 12)


def letters_with_strays(case: GroupCase) -> None:
    case.options = {"dead_letters": True}
    has_strays(case)


def listed_wrongly(case: GroupCase) -> None:
    """A group is listed that does not exist, and no group has a bound."""
    has_read(case)
    case.raw("ZADD", f"{case.key}:groups", 1, "ghost")
    case.raw("DEL", f"{case.key}:positions")


def silent(case: GroupCase) -> None:
    """Nobody has read in the group for long."""
    has_read(case)
    case.stream.register_reader("outside", 3)
    case.stream.register_reader("old", 2)
    case.raw("ZREM", f"{case.key}:seen", "old")
    case.raw("DEL", f"{case.group_key}:members")
    case.raw("HSET", case.group_key, "created", 1)


def with_an_idle_reader(case: GroupCase) -> None:
    """Neither the group nor one of the readers was seen for long."""
    silent(case)
    case.raw("ZADD", f"{case.key}:seen", 1, "outside")


def waited_for_nobody(case: GroupCase) -> None:
    """Retention has passed those that were silent for long."""
    with_an_idle_reader(case)
    case.stream.forget_reader("old")
    case.over |= set(range(1, MESSAGES - 3))
    case.stream.retain(max_count=4, max_idle_ms=60_000)


def with_holes(case: GroupCase) -> None:
    """Compaction has left holes before the group has read, and where messages are pending."""
    has_read(case)
    case.stream.seal()
    case.stream.compact()
    case.over = set(range(1, MESSAGES))
    case.group.nack((1, 6))


def one_waits_for_what_is_late(case: GroupCase) -> None:
    """Something is pending for long, and somebody waits."""
    nobody_waits(case)
    case.stream.write("t", b"late")
    case.read(1)
    case.wait("w1", wait_ms=5000)


def deleted_before(case: GroupCase) -> None:
    """A stream of this name was deleted, and its groups are not freed."""
    crowded(case)
    case.read(6)
    case.call("hw_stream_delete")


def deleted_and_new(case: GroupCase) -> None:
    """A new group has begun before the old ones are freed."""
    deleted_before(case)
    started(case)


def write(case: GroupCase) -> None:
    """Write a message, of which the outcome may be unknown; what was delivered is taken."""
    try:
        case.stream.write("t", b"new")
    finally:
        case.unbox("w1")
        case.unbox("w2")
