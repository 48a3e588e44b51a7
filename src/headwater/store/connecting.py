"""What the connections of both clients share: which server has a key, how to reach it."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, Protocol, TypeAlias

import redis
from hiredis import pack_command
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from headwater.errors import AccessDenied, StoreError
from headwater.store import faults
from headwater.store.call import Key
from headwater.store.url import Address, node_name

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


class Scattered:
    """Commands for several servers, sent in rounds: what was redirected goes into the next one.

    ``left`` are the places of those to be sent. ``asked`` are few, and are to be sent one by one:
    their slots are being migrated, key by key.
    """

    def __init__(self, slots: SlotMap, commands: Sequence[tuple[Key, tuple[Any, ...]]]) -> None:
        self._slots = slots
        self._commands = commands
        self._rounds = 0
        self.replies: list[Any] = [None] * len(commands)
        self.left: Sequence[int] = range(len(commands))
        self.asked: list[int] = []

    def parts(self) -> list[tuple[Node, list[int], list[tuple[Key, tuple[Any, ...]]]]]:
        """Return what each server is to be sent in the next round, and its places."""
        by_node: dict[Node, list[int]] = {}
        for place in self.left:
            try:
                node = self._slots.owner(self._commands[place][0])
            except ClusterDownError as error:
                self.replies[place] = error
            else:
                by_node.setdefault(node, []).append(place)
        self._rounds += 1
        self.left = []
        return [
            (node, places, [self._commands[place] for place in places])
            for node, places in by_node.items()
        ]

    def take(self, node: Node, places: Sequence[int], replies: Sequence[Any]) -> None:
        """Keep what a server replied; what it redirected goes into the next round."""
        moved: list[int] = []
        for place, reply in zip(places, replies, strict=True):
            self.replies[place] = reply
            if isinstance(reply, MovedError):
                self._slots.redirect(reply, node, moved=True)
                self.replies[place] = still_moving()
                moved.append(place)
            elif isinstance(reply, AskError):
                self.asked.append(place)
        if self._rounds < MOST_REDIRECTIONS:
            self.left = [*self.left, *moved]

    def fail(self, error: Exception) -> None:
        """Put an error in place of the replies that are still to come."""
        for place in self.left:
            self.replies[place] = error
        self.left = []


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


# ── Sentinels ─────────────────────────────────────────────────────────────────────────────────────
# Sentinels are asked which server is the primary, each time before a connection to it is opened.
#
# A connection that broke may have ended with a failover, so its successor asks again: an old
# primary that comes back does not get writes that would be lost. A server that says it is a
# replica is not used, where its user may ask for that (ROLE). Open connections need no sentinel.


# One of several: when it does not answer soon, the next one is asked.
SENTINEL_TIMEOUT_S = 1.0


class Sentinels:
    """The sentinels of one service, the one that answered last first."""

    def __init__(self, address: Address) -> None:
        self._service, self._where = address.service, address.safe
        self._nodes = deque(address.nodes)

    def find(self) -> Generator[tuple[Node, tuple[str, ...]], Any, Node]:
        """Return the address of the primary: yields a sentinel and a command, is sent the reply.

        Raises AccessDenied or StoreError when every sentinel answered, and none of them knows;
        ConnectionError when one of them may still.
        """
        refusals: list[BaseException] = []
        why, absent = "", 0
        for node in list(self._nodes):
            # It is the last one from now on, also for others, until it has answered.
            self._nodes.rotate(-1)
            try:
                reply = yield node, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
            except redis.ResponseError as error:
                refusals.append(error)
            except (redis.RedisError, OSError) as error:
                if faults.is_access(error):
                    refusals.append(error)
                why = f"{node_name(*node)}: {error}"
                absent += faults.nobody_listens(error)
            else:
                if reply is not None:
                    host, port = reply
                    self._put_first(node)
                    return host.decode(), int(port)
                refusals.append(faults.lasting_error(self._unknown()))
        if len(refusals) < len(self._nodes):
            kind = faults.NobodyListens if absent == len(self._nodes) else RedisConnectionError
            raise kind(f"no sentinel names the primary ({why})")
        raise self._refusal(refusals[0])

    def doubt(self) -> None:
        """Ask another sentinel next: the primary that this one named does not serve."""
        self._nodes.rotate(-1)

    def _put_first(self, node: Node) -> None:
        self._nodes.remove(node)
        self._nodes.appendleft(node)

    def _unknown(self) -> str:
        return (
            f"the sentinels at {self._where} know no service {self._service!r}; "
            "SENTINEL MASTERS lists those that they know"
        )

    def _refusal(self, error: BaseException) -> BaseException:
        if faults.is_access(error):
            return AccessDenied(
                self._where,
                f"a sentinel refuses us ({error})",
                "give its user and password by ?sentinel_username=...&sentinel_password=...",
            )
        if isinstance(error, redis.ResponseError):
            return faults.lasting_error(
                f"a server at {self._where} is no sentinel ({error}); "
                "name the sentinels there, by default at port 26379, or use a redis:// URL"
            )
        return error


def _check_role(reply: Any) -> None:
    if reply[0] != b"master":
        raise RedisConnectionError("the sentinels name a server that is not a primary yet")


class _Following:
    """A connection that asks for the primary whenever it connects."""

    sentinels: Sentinels
    ask: Callable[..., Any]

    def _connect(self: Any) -> Any:
        found = self.sentinels.find()
        try:
            step = found.send(None)
            while True:
                try:
                    reply = _ask(self.ask, *step)
                except (redis.RedisError, OSError) as error:
                    step = found.throw(error)
                else:
                    step = found.send(reply)
        except StopIteration as done:
            self.host, self.port = done.value
        try:
            return super()._connect()  # type: ignore[misc]
        except (redis.RedisError, OSError):
            self.sentinels.doubt()
            raise

    def on_connect(self: Any) -> None:
        super().on_connect()  # type: ignore[misc]
        self.send_command("ROLE")
        try:
            _check_role(self.read_response(disable_decoding=True))
        except NoPermissionError:
            return
        except RedisConnectionError:
            self.sentinels.doubt()
            raise


def _ask(make: Callable[..., Any], node: Node, command: tuple[str, ...]) -> Any:
    connection = make(host=node[0], port=node[1])
    try:
        connection.connect()
        connection.send_command(*command)
        return connection.read_response(disable_decoding=True)
    finally:
        connection.disconnect()


class _AsyncFollowing:
    """See _Following."""

    sentinels: Sentinels
    ask: Callable[..., Any]

    async def _connect(self: Any) -> Any:
        found = self.sentinels.find()
        try:
            step = found.send(None)
            while True:
                try:
                    reply = await _ask_async(self.ask, *step)
                except (redis.RedisError, OSError) as error:
                    step = found.throw(error)
                else:
                    step = found.send(reply)
        except StopIteration as done:
            self.host, self.port = done.value
        try:
            return await super()._connect()  # type: ignore[misc]
        except (redis.RedisError, OSError):
            self.sentinels.doubt()
            raise

    async def on_connect(self: Any) -> None:
        await super().on_connect()  # type: ignore[misc]
        await self.send_command("ROLE")
        try:
            _check_role(await self.read_response(disable_decoding=True))
        except NoPermissionError:
            return
        except RedisConnectionError:
            self.sentinels.doubt()
            raise


async def _ask_async(make: Callable[..., Any], node: Node, command: tuple[str, ...]) -> Any:
    connection = make(host=node[0], port=node[1])
    try:
        await connection.connect()
        await connection.send_command(*command)
        return await connection.read_response(disable_decoding=True)
    finally:
        await connection.disconnect(nowait=True)


def following(kind: type, address: Address, ask: Callable[..., Any]) -> type:
    """Return a kind of redis-py's connections that leads to the primary of a service.

    ``kind`` is one of its own; ``ask`` makes connections to sentinels.
    """
    shell = _AsyncFollowing if kind.__module__.startswith("redis.asyncio") else _Following
    return type(
        kind.__name__, (shell, kind), {"sentinels": Sentinels(address), "ask": staticmethod(ask)}
    )


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


def connection_maker(
    module: Any, options: dict[str, Any], address: Address | None = None, **more: Any
) -> Callable[..., Any]:
    """Return a maker of redis-py's connections, sync or async: raw replies, no retries.

    They lead to the primary of a service when ``address`` names sentinels.
    """
    options = {
        "protocol": 2,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "client_name": "headwater",
        "driver_info": None,
        **options,
        **more,
    }
    path, tls = options.pop("unix_socket_path", None), options.pop("ssl", False)
    if path is not None:
        kind, options["path"] = module.UnixDomainSocketConnection, path
    else:
        kind = module.SSLConnection if tls else module.Connection
    if address is not None and address.kind == "sentinel":
        wait_s = SENTINEL_TIMEOUT_S
        ask = connection_maker(
            module,
            address.sentinel_options,
            socket_timeout=wait_s,
            socket_connect_timeout=wait_s,
        )
        kind = following(kind, address, ask)

    # Not a partial, which would show the password wherever it is shown.
    def make(**place: Any) -> Any:
        return kind(**options, **place)

    return make


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
