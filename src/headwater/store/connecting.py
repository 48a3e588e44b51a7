"""What the connections of both clients share: which server has a key, how to reach it."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, Protocol, TypeAlias

import redis
from hiredis import pack_command
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    TryAgainError,
)

from headwater.errors import StoreError
from headwater.store.call import Key

# ── Slots ─────────────────────────────────────────────────────────────────────────────────────────
# Which server of a cluster has a key: learned from the cluster, corrected by its redirections.
#
# Every call of ours names one key, so the owner is known without asking, and a call costs one
# round trip. The map only remembers; the code that does the I/O feeds it replies and redirections.


Node: TypeAlias = tuple[str, int]

# A redirection may be out of date itself while slots move; more than a few are a circle.
MOST_REDIRECTIONS = 8


class SlotMap:
    """The owners of all slots; ``stale`` says that it is time to learn them again."""

    def __init__(self, seeds: tuple[Node, ...]) -> None:
        self._seeds = seeds
        self._ranges: list[tuple[int, int, Node]] = []
        self._owners: dict[int, Node] = {}
        self._candidates = deque(seeds)
        self.stale = True

    def candidates(self) -> list[Node]:
        """Return the servers to learn from, replicas too, another one first each time.

        So a server that is down, or cut off from the others, is not asked first again.
        """
        self._candidates.rotate(-1)
        return list(self._candidates)

    def primaries(self) -> list[Node]:
        """Return the servers that own slots."""
        return list(dict.fromkeys(node for _, _, node in self._ranges))

    def learn(self, reply: list[Any], asked: Node) -> None:
        """Learn from a reply of CLUSTER SLOTS; a server that has no name is ``asked``."""
        ranges, known = [], dict.fromkeys(self._seeds)
        for first, last, *servers in reply:
            nodes = [(host.decode() if host else asked[0], port) for host, port, *_ in servers]
            known.update(dict.fromkeys(nodes))
            ranges.append((first, last, nodes[0]))
        self._ranges, self._owners = ranges, {}
        self._candidates = deque(known)
        self.stale = not ranges

    def owner(self, key: Key) -> Node:
        """Return the server of a key; raises ClusterDownError when no server has its slot."""
        slot = key_slot(key.encode() if isinstance(key, str) else key)
        found = self._owners.get(slot)
        if found is None:
            for first, last, node in self._ranges:
                if first <= slot <= last:
                    found = self._owners[slot] = node
                    break
            else:
                self.stale = True
                raise ClusterDownError(f"no server has hash slot {slot}", status_code="CLUSTERDOWN")
        return found

    def redirect(self, error: AskError, asked: Node, *, moved: bool) -> Node:
        """Return the server that a redirection points to; a move is remembered."""
        node = (error.host or asked[0], error.port)
        if moved:
            self._owners[error.slot_id] = node
            self.stale = True
        return node


def still_moving() -> TryAgainError:
    """Return the error for a call that was redirected too often."""
    return TryAgainError("the slot is moving", status_code="TRYAGAIN")


# ── Idle ──────────────────────────────────────────────────────────────────────────────────────────
# Idle connections of one server: the most recently used is taken first, unused ones are closed.
#
# A burst may need thousands of connections at once. Connections that were not needed for IDLE_S
# are closed, except the few that are always kept. A pool that has only those costs nothing; for
# the others one thread watches all pools of a process, and ends when there is nothing to close.


IDLE_S = 30.0
KEPT = 4


class IdleConnections:
    """Connections that serve no call; safe to share between threads."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        # The one that was put back last is at the right end.
        self._found: deque[tuple[Any, float]] = deque()

    def take(self) -> Any:
        """Return the warmest connection; raises IndexError when there is none."""
        return self._found.pop()[0]

    def put(self, connection: Any) -> bool:
        """Put a connection back; returns whether there are more than are always kept."""
        self._found.append((connection, time.monotonic()))
        return len(self._found) > KEPT

    def take_unused(self) -> list[Any]:
        """Return the connections that were unused for IDLE_S, to be closed."""
        unused = []
        until = time.monotonic() - IDLE_S
        try:
            # Another thread may take one in between: then a warmer one is closed, which is
            # harmless.
            while len(self._found) > KEPT and self._found[0][1] <= until:
                unused.append(self._found.popleft()[0])
        except IndexError:
            pass
        return unused

    @property
    def has_many(self) -> bool:
        """Whether there are more than are always kept."""
        return len(self._found) > KEPT


class ClosesUnused(Protocol):
    """A pool that the thread watches."""

    def close_unused(self) -> bool:
        """Close connections that were unused for long; returns whether to check again later."""


class _Watch:
    """The thread that watches all pools with many idle connections; it ends with the last."""

    def __init__(self) -> None:
        self.begin_anew()
        # A forked child has the lock as it was, and not the thread.
        os.register_at_fork(after_in_child=self.begin_anew)

    def begin_anew(self) -> None:
        """Begin without pools and without a thread."""
        self._lock = threading.Lock()
        self._pools: weakref.WeakSet[ClosesUnused] = weakref.WeakSet()
        self._running = False

    def add(self, pool: ClosesUnused) -> None:
        """Watch a pool until it has few idle connections."""
        with self._lock:
            self._pools.add(pool)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="headwater-idle", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(IDLE_S / 4)
            with self._lock:
                pools = list(self._pools)
            done = [pool for pool in pools if not pool.close_unused()]
            with self._lock:
                self._pools.difference_update(done)
                if not self._pools:
                    self._running = False
                    return
            # This thread must not keep a pool alive that is no longer used.
            del pools, done


watch = _Watch().add


# ── Connecting ────────────────────────────────────────────────────────────────────────────────────


# A reply that takes longer than this is taken for a dead connection; blocking calls are cut into
# slices well below it.
REPLY_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
# A server ends a blocking command by its own clock, which may be stepped back meanwhile. A reply
# that is this late is not waited for.
OVERDUE_S = 0.5
ASKING = pack_command(("ASKING",))
# By this number a connection that blocks can be freed by another one.
CLIENT_ID: bytes = pack_command(tuple[Any, ...](("CLIENT", "ID")))


def has_news(sock: Any, wait_s: float = 0) -> bool:
    """Return whether there is something to read within that time.

    For an idle connection this means its end: nothing else makes it readable.
    """
    if sock is None:
        return False
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


@contextmanager
def last_words(sock: Any) -> Iterator[None]:
    """Raise the server's message before it closed a connection, instead of a broken pipe.

    A server that is full says so and closes. On a unix socket a command that is sent just then
    fails at once, and the socket is closed with the message of the server unread.
    """
    if sock is None or sock.family != socket.AF_UNIX:
        yield
        return
    with socket.socket(fileno=os.dup(sock.fileno())) as spare:
        try:
            yield
        except (redis.ConnectionError, OSError):
            spare.setblocking(False)
            with suppress(OSError):
                if (said := spare.recv(1024)).startswith(b"-"):
                    raise redis.ConnectionError(said[1:].decode("utf-8", "replace")) from None
            raise


def refuse_closed(**_: Any) -> NoReturn:
    """Replace the maker of connections once a store is closed."""
    raise StoreError("this client was closed; connect again") from None
