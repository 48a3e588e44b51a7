"""The blocking store: runs operations over one server, a cluster or the embedded server.

A store is safe to share between threads: every call takes a connection for itself. It brings the
function library back when the server lost it, waits out a failover or a restart, and never sends
a call twice unless that is harmless.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import redis

from headwater.errors import StoreError
from headwater.store import faults
from headwater.store.call import Call, Clock, Key, Look, Operation, Wait
from headwater.store.connections import Line, open_line
from headwater.store.directory import default_directory
from headwater.store.embedded import EmbeddedServer
from headwater.store.library import library, needs_loading
from headwater.store.url import Address, resolve

T = TypeVar("T")

GREETING = Call("hw_version", "", read_only=True)


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
        if address.directory is not None:
            self.server = EmbeddedServer.open(address.directory)
        self.line: Line = open_line(address, self.server.socket_path if self.server else None)
        self._spell = spelling(address)
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
        if self.kind != "cluster":
            faults.check_whole(infos[0], self.where)
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

    def run(self, operation: Operation[T], patience_s: float | None = None) -> T:
        """Drive an operation to its end.

        ``patience_s`` is how long each of its calls waits for a server that is away; who has more
        to do meanwhile, or must be able to stop, waits less than the default.
        """
        try:
            request = operation.send(None)
            while True:
                try:
                    if isinstance(request, Clock):
                        reply: Any = time.monotonic() * 1000
                    elif isinstance(request, Look):
                        reply = self.look(request)
                    else:
                        reply = self.ask(request, patience_s)
                except (faults.Refusal, StoreError) as error:
                    # An operation may know better than to fail: its main part may be done.
                    request = operation.throw(error)
                else:
                    request = operation.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result

    def ask(self, request: Call | Wait, patience_s: float | None = None) -> Any:
        """Run one request, recovering from what can be recovered from."""
        command = self._spell(request)
        fresh = not (isinstance(request, Wait) or request.repeatable or request.read_only)
        try:
            return self.line.send(request.key, command, fresh=fresh)
        except (redis.RedisError, OSError) as error:
            fault = error
        again = partial(self.line.send, request.key, command, fresh=True)
        return self._insist(faults.Trouble(request, self.where, patience_s), fault, again)

    def ask_all(self, calls: Sequence[Call]) -> list[Any]:
        """Run read-only calls, all that go to one server in one round trip.

        When that fails, each is asked for by itself, and recovers as a single one does.
        """
        try:
            return self.line.send_all([(call.key, self._spell(call)) for call in calls])
        except (redis.RedisError, OSError):
            return [self.ask(call) for call in calls]

    def look(self, request: Look) -> list[Any] | None:
        """Run commands that only read, in one round trip; None when that did not work at once."""
        try:
            return self.line.send_all([(request.key, command) for command in request.commands])
        except (redis.RedisError, OSError):
            return None

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


def spelling(address: Address) -> Callable[[Call | Wait], tuple[Any, ...]]:
    """Give what spells a request as a command for the servers at an address."""
    return _for_node if address.kind == "cluster" else for_server


def for_server(request: Call | Wait) -> tuple[Any, ...]:
    """Spell a request for a server that is alone."""
    if isinstance(request, Wait):
        return request.command
    return _fcall(request, request.also)


def _for_node(request: Call | Wait) -> tuple[Any, ...]:
    """Spell a request for a node of a cluster.

    While the slot is on its way to another node, key by key, a node that lacks one of the keys of
    a call refuses it as a whole (TRYAGAIN) instead of stopping it in the middle, at the first of
    the object's keys that is not there or not there any more. So each call names either all keys
    of its object, or a second one that never exists.
    """
    if isinstance(request, Wait):
        return request.command
    return _fcall(request, request.also or (_beside(request.key),))


def _beside(key: Key) -> Key:
    return f"{key}:" if isinstance(key, str) else key + b":"


def _fcall(call: Call, also: tuple[Key, ...]) -> tuple[Any, ...]:
    verb = "FCALL_RO" if call.read_only else "FCALL"
    return (verb, call.function, 1 + len(also), call.key, *also, *call.args)
