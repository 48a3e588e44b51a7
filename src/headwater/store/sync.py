"""The blocking store: runs operations over one server, a cluster or the embedded server.

A store is safe to share between threads: every call takes a connection for itself. It brings the
function library back when the server lost it, waits out a failover or a restart, and never sends
a call twice unless that is harmless.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from typing import Any, Protocol, TypeVar

import redis
import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from headwater.store import faults
from headwater.store.call import Call, Clock, Operation, Wait
from headwater.store.embedded import EmbeddedServer, default_directory
from headwater.store.library import library, needs_loading
from headwater.store.slots import MOST_REDIRECTIONS, Node, SlotMap
from headwater.store.url import Address, resolve

T = TypeVar("T")

# A reply that takes longer than this is taken for a dead connection; blocking calls are cut into
# slices well below it.
REPLY_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0


def connection_options(address: Address) -> dict[str, Any]:
    """Options for redis-py that both stores share: no hidden retries, raw replies."""
    return {
        **address.options,
        "protocol": 2,
        "socket_timeout": REPLY_TIMEOUT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "client_name": "headwater",
    }


class Line(Protocol):
    """How commands reach the server or the cluster that an address names."""

    def send(self, key: str, command: tuple[Any, ...], *, fresh: bool) -> Any:
        """Run one command and give its reply; ``fresh`` asks for a connection known to be alive."""

    def each(self, command: tuple[Any, ...]) -> list[Any]:
        """Run one command on every server that takes writes."""

    def close(self) -> None:
        """Close all connections."""


class ServerLine:
    """Connections to one server, the warmest first."""

    def __init__(self, options: dict[str, Any]) -> None:
        client = redis.Redis(**options, retry=Retry(NoBackoff(), 0))
        self._pool = client.connection_pool
        self._idle: deque[Any] = deque()
        self._pid = os.getpid()

    def send(
        self,
        key: str,  # noqa: ARG002
        command: tuple[Any, ...],
        *,
        fresh: bool,
        asking: bool = False,
    ) -> Any:
        """See Line; one server has every key. ``asking`` is for a slot that moves to it."""
        if self._pid != os.getpid():
            self._idle, self._pid = deque(), os.getpid()
        try:
            connection = self._idle.pop()
            if fresh and _has_news(connection):
                connection.disconnect()
        except IndexError:
            connection = self._pool.make_connection()
        try:
            if asking:
                connection.send_command("ASKING", check_health=False)
                connection.read_response()
            connection.send_packed_command(connection.pack_command(*command), check_health=False)
            reply = connection.read_response(disable_decoding=True)
        except redis.ResponseError:
            self._idle.append(connection)
            raise
        except BaseException:
            connection.disconnect()
            raise
        self._idle.append(connection)
        return reply

    def each(self, command: tuple[Any, ...]) -> list[Any]:
        """See Line."""
        return [self.send("", command, fresh=True)]

    def close(self) -> None:
        """See Line."""
        while self._idle:
            self._idle.pop().disconnect()


def _has_news(connection: Any) -> bool:
    """Say whether an idle connection was closed by its peer: nothing else can make it readable."""
    sock = connection._sock
    if sock is None:
        return False
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


class ClusterLine:
    """Connections to the servers of a cluster; follows slots as they move."""

    def __init__(self, address: Address, options: dict[str, Any]) -> None:
        self._options = options
        self._slots = SlotMap(address.nodes)
        self._lines: dict[Node, ServerLine] = {}

    def send(self, key: str, command: tuple[Any, ...], *, fresh: bool) -> Any:
        """See Line."""
        self._learn()
        node, asking = self._slots.owner(key), False
        for _ in range(MOST_REDIRECTIONS):
            try:
                return self._line(node).send(key, command, fresh=fresh, asking=asking)
            except redis.exceptions.AskError as error:
                asking = not isinstance(error, redis.exceptions.MovedError)
                node = self._slots.redirect(error, node, moved=not asking)
            except (redis.ConnectionError, redis.TimeoutError, OSError):
                self._slots.stale = True
                raise
        raise redis.exceptions.TryAgainError(f"TRYAGAIN the slot of {key} is moving")

    def each(self, command: tuple[Any, ...]) -> list[Any]:
        """See Line."""
        self._slots.stale = True
        self._learn()
        return [self._line(node).send("", command, fresh=True) for node in self._slots.primaries()]

    def _line(self, node: Node) -> ServerLine:
        line = self._lines.get(node)
        if line is None:
            host, port = node
            line = self._lines.setdefault(
                node, ServerLine({**self._options, "host": host, "port": port})
            )
        return line

    def _learn(self) -> None:
        """Ask for the owners of slots when that is due; any server may answer."""
        fault: BaseException | None = None
        for node in self._slots.candidates() if self._slots.stale else ():
            try:
                reply = self._line(node).send("", ("CLUSTER", "SLOTS"), fresh=True)
            except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
                fault = error
            else:
                self._slots.learn(reply, node)
                return
        if fault is not None:
            raise fault

    def close(self) -> None:
        """See Line."""
        for line in self._lines.values():
            line.close()


class Store:
    """A connected store; ``run`` is all that the data types need of it."""

    def __init__(self, url: str | None = None) -> None:
        """Connect, check the server and make sure that it has our functions.

        Raises StoreUnreachable, AccessDenied, StoreTooOld, LibraryTooNew, EmbeddedServerFailed.
        """
        address = resolve(url, default_directory())
        self.where = address.safe
        self.kind = address.kind
        self.server: EmbeddedServer | None = None
        options = connection_options(address)
        if address.directory is not None:
            self.server = EmbeddedServer.open(address.directory)
            options["unix_socket_path"] = self.server.socket_path
        try:
            self.line: Line = (
                ClusterLine(address, options) if address.kind == "cluster" else ServerLine(options)
            )
            self.version = self._greet()
        except BaseException as error:
            self.close()
            if isinstance(error, redis.RedisError | OSError):
                faults.raise_connecting(error, self.where)
            raise

    def _greet(self) -> str:
        infos = [faults.parse_info(reply) for reply in self.line.each(("INFO", "server"))]
        version = next(faults.check_version(info, self.where) for info in infos)
        self.load_library()
        return version

    def load_library(self) -> None:
        """Give every server our function library unless it has this one or a newer."""
        try:
            found = self.line.each(("FCALL", "hw_version", "0"))
        except redis.ResponseError as error:
            if "Function not found" not in str(error):
                raise
            found = [None]
        if any(needs_loading(name and name.decode(), self.where) for name in found):
            self.line.each(("FUNCTION", "LOAD", "REPLACE", library().source))

    def run(self, operation: Operation[T]) -> T:
        """Drive an operation to its end."""
        try:
            request = operation.send(None)
            while True:
                try:
                    if isinstance(request, Clock):
                        reply: Any = time.monotonic() * 1000
                    else:
                        reply = self.ask(request)
                except faults.Refusal as refusal:
                    request = operation.throw(refusal)
                else:
                    request = operation.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result

    def ask(self, request: Call | Wait) -> Any:
        """Run one request, recovering from what can be recovered from."""
        command = command_of(request)
        fresh = not (isinstance(request, Wait) or request.repeatable)
        try:
            return self.line.send(request.key, command, fresh=fresh)
        except (redis.RedisError, OSError) as error:
            return self._recover(request, command, error)

    def _recover(self, request: Call | Wait, command: tuple[Any, ...], error: BaseException) -> Any:
        began, tries = time.monotonic(), 0
        while True:
            verdict = faults.judge(error, request, self.where, tries, time.monotonic() - began)
            tries += 1
            try:
                if verdict.action == "load":
                    self.load_library()
                else:
                    time.sleep(verdict.delay_s)
                    if self.server is not None:
                        self.server.ensure_running()
                return self.line.send(request.key, command, fresh=True)
            except (redis.RedisError, OSError) as again:
                error = again

    def command(self, *words: Any) -> list[Any]:
        """Run an administrative command on every server; for the doctor and the tests."""
        return self.line.each(words)

    def close(self) -> None:
        """Close all connections and give up the hold on the embedded server."""
        line: Line | None = getattr(self, "line", None)
        if line is not None:
            line.close()
        if self.server is not None:
            self.server.close()


def command_of(request: Call | Wait) -> tuple[Any, ...]:
    """Spell a request as a command."""
    if isinstance(request, Wait):
        return request.command
    verb = "FCALL_RO" if request.read_only else "FCALL"
    return (verb, request.function, 1, request.key, *request.args)
