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
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar

import redis
import redis.connection
import redis.exceptions
from hiredis import pack_command

from headwater.errors import StoreError
from headwater.store import faults
from headwater.store.call import Call, Clock, Operation, Wait
from headwater.store.embedded import EmbeddedServer, default_directory
from headwater.store.library import library, needs_loading
from headwater.store.slots import MOST_REDIRECTIONS, Node, SlotMap
from headwater.store.url import resolve

T = TypeVar("T")

# A reply that takes longer than this is taken for a dead connection; blocking calls are cut into
# slices well below it.
REPLY_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
ASKING = pack_command(("ASKING",))


def connection_maker(module: Any, options: dict[str, Any], **more: Any) -> Callable[..., Any]:
    """Give what makes a connection, of redis-py's sync or async module: raw replies, no retries."""
    options = {
        **options,
        **more,
        "protocol": 2,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "client_name": "headwater",
        "driver_info": None,
    }
    path, tls = options.pop("unix_socket_path", None), options.pop("ssl", False)
    if path is not None:
        return partial(module.UnixDomainSocketConnection, path=path, **options)
    return partial(module.SSLConnection if tls else module.Connection, **options)


def _shake_hands(connection: Any) -> None:
    """Log in, by when the server must answer at once; calls may take their time."""
    connection.on_connect()
    connection._sock.settimeout(REPLY_TIMEOUT_S)


class Line(Protocol):
    """How commands reach the server or the cluster that an address names."""

    def send(self, key: str, command: tuple[Any, ...], *, fresh: bool) -> Any:
        """Run one command and give its reply; ``fresh`` asks for a connection known to be alive.

        Raises Unsent when it surely did not happen for want of a connection.
        """

    def servers(self) -> list[ServerLine]:
        """Give a line to every server that takes writes."""

    def renew(self) -> None:
        """Forget what may be out of date: connections, or which node serves what."""

    def close(self) -> None:
        """Close all connections."""


class ServerLine:
    """Connections to one server, the warmest first."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._idle: deque[Any] = deque()
        self._pid = os.getpid()

    def send(
        self,
        key: str,  # noqa: ARG002  one server has every key
        command: tuple[Any, ...],
        *,
        fresh: bool,
        asking: bool = False,
    ) -> Any:
        """See Line; ``asking`` runs it on a node that is just taking over the key's slot."""
        if self._pid != os.getpid():
            self._idle, self._pid = deque(), os.getpid()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._make()
        else:
            if fresh and has_news(connection._sock):
                connection.disconnect()
        packed = pack_command(command)
        try:
            connection.send_packed_command((ASKING, packed) if asking else (packed,), False)
        except (redis.RedisError, OSError) as error:
            # Not all of it was given to the kernel: the server cannot have a whole command.
            raise faults.unsent(error) from error
        try:
            if asking:
                connection.read_response()
            reply = connection.read_response(disable_decoding=True)
        except redis.ResponseError:
            if asking:
                connection.disconnect()
            self._idle.append(connection)
            raise
        except BaseException:
            connection.disconnect()
            raise
        self._idle.append(connection)
        return reply

    def servers(self) -> list[ServerLine]:
        """See Line."""
        return [self]

    def renew(self) -> None:
        """See Line: this address may lead to another server by now."""
        while self._idle:
            self._idle.pop().disconnect()

    def close(self) -> None:
        """See Line."""
        self._make = refuse_closed
        self.renew()


def has_news(sock: Any) -> bool:
    """Say whether an idle connection was closed by its peer: nothing else can make it readable."""
    if sock is None:
        return False
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def refuse_closed(**_: Any) -> NoReturn:
    """Take the place of what makes connections once a store is closed."""
    raise StoreError("this client was closed; connect again")


class ClusterLine:
    """Connections to the servers of a cluster; follows slots as they move."""

    def __init__(self, nodes: tuple[Node, ...], make: Callable[..., Any]) -> None:
        self._make = make
        self._slots = SlotMap(nodes)
        self._lines: dict[Node, ServerLine] = {}

    def send(self, key: str, command: tuple[Any, ...], *, fresh: bool) -> Any:
        """See Line."""
        if self._slots.stale:
            self._learn()
        node, asking = self._slots.owner(key), False
        for _ in range(MOST_REDIRECTIONS):
            try:
                return self._line(node).send(key, command, fresh=fresh, asking=asking)
            except redis.exceptions.AskError as error:
                asking = not isinstance(error, redis.exceptions.MovedError)
                node = self._slots.redirect(error, node, moved=not asking)
        raise redis.exceptions.TryAgainError("the slot is moving", status_code="TRYAGAIN")

    def servers(self) -> list[ServerLine]:
        """See Line."""
        self._learn()
        return [self._line(node) for node in self._slots.primaries()]

    def renew(self) -> None:
        """See Line: slots may have moved, and a replica may be a primary by now."""
        self._slots.stale = True

    def _learn(self) -> None:
        """Ask for the owners of slots; any server may answer."""
        fault: BaseException = redis.ConnectionError("no server is known")
        for node in self._slots.candidates():
            try:
                reply = self._line(node).send("", ("CLUSTER", "SLOTS"), fresh=True)
            except (redis.RedisError, OSError) as error:
                fault = error
            else:
                return self._slots.learn(reply, node)
        raise faults.unsent(fault)

    def close(self) -> None:
        """See Line."""
        self._make = refuse_closed
        while self._lines:
            self._lines.popitem()[1].close()

    def _line(self, node: Node) -> ServerLine:
        line = self._lines.get(node)
        if line is None:
            host, port = node
            # Of two threads that come here at once, both use the one that was there first.
            line = self._lines.setdefault(
                node, ServerLine(partial(self._make, host=host, port=port))
            )
        return line


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
        options = address.options
        if address.directory is not None:
            self.server = EmbeddedServer.open(address.directory)
            options = {"unix_socket_path": self.server.socket_path}
        make = connection_maker(
            redis.connection,
            options,
            socket_timeout=CONNECT_TIMEOUT_S,
            redis_connect_func=_shake_hands,
        )
        clustered = address.kind == "cluster"
        self.line: Line = ClusterLine(address.nodes, make) if clustered else ServerLine(make)
        self._spell = command_of_cluster if clustered else command_of
        try:
            self.version = self._greet()
        except BaseException:
            self.close()
            raise

    def _greet(self) -> str:
        try:
            return self._introduce()
        except (redis.RedisError, OSError) as error:
            fault = error
        trouble = faults.Trouble(GREETING if self.server else None, self.where)
        return self._insist(trouble, fault, self._introduce)

    def _introduce(self) -> str:
        infos = [faults.parse_info(reply) for reply in self.command("INFO", "server")]
        versions = [faults.check_server(info, self.where) for info in infos]
        self.load_library()
        return versions[0]

    def load_library(self) -> None:
        """Give every server our function library unless it has this one.

        Raises LibraryTooNew, before anything is changed, when one of them has a newer.
        """
        lacking = []
        for server in self.line.servers():
            try:
                found = server.send("", ("FCALL", "hw_version", 0), fresh=True).decode()
            except redis.ResponseError as error:
                if "Function not found" not in str(error):
                    raise
                found = None
            if needs_loading(found, self.where):
                lacking.append(server)
        for server in lacking:
            server.send("", ("FUNCTION", "LOAD", "REPLACE", library().source), fresh=True)

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
        command = self._spell(request)
        fresh = not (isinstance(request, Wait) or request.repeatable)
        try:
            return self.line.send(request.key, command, fresh=fresh)
        except (redis.RedisError, OSError) as error:
            fault = error
        again = partial(self.line.send, request.key, command, fresh=True)
        return self._insist(faults.Trouble(request, self.where), fault, again)

    def _insist(self, trouble: faults.Trouble, fault: Exception, attempt: Callable[[], T]) -> T:
        """Try again until it succeeds or the trouble is such that the caller must know."""
        while True:
            step = trouble.judge(fault)
            try:
                self._prepare(step, trouble.delay_s)
                return attempt()
            except (redis.RedisError, OSError) as error:
                fault = error

    def _prepare(self, step: faults.Step, delay_s: float) -> None:
        try:
            if step == "load":
                return self.load_library()
            time.sleep(delay_s)
            if step == "renew":
                if self.server is not None:
                    self.server.ensure_running()
                self.line.renew()
        except (redis.RedisError, OSError) as error:
            raise faults.unsent(error) from error

    def command(self, *words: Any) -> list[Any]:
        """Run an administrative command on every server that takes writes."""
        return [server.send("", words, fresh=True) for server in self.line.servers()]

    def close(self) -> None:
        """Close all connections and give up the hold on the embedded server."""
        self.line.close()
        if self.server is not None:
            self.server.close()


GREETING = Call("hw_version", "", repeatable=True)


def command_of(request: Call | Wait) -> tuple[Any, ...]:
    """Spell a request as a command."""
    if isinstance(request, Wait):
        return request.command
    verb = "FCALL_RO" if request.read_only else "FCALL"
    return (verb, request.function, 1, request.key, *request.args)


def command_of_cluster(request: Call | Wait) -> tuple[Any, ...]:
    """Spell a request as a command for a node of a cluster.

    The second key never exists. While the slot is on its way to another node, key by key, the node
    then refuses the call as a whole (TRYAGAIN) instead of stopping it in the middle, at the first
    of the object's keys that is not there or not there any more.
    """
    if isinstance(request, Wait):
        return request.command
    verb = "FCALL_RO" if request.read_only else "FCALL"
    return (verb, request.function, 2, request.key, f"{request.key}:", *request.args)
