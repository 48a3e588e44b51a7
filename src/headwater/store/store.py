"""The blocking store: runs operations over one server, a cluster or the embedded server.

A store is safe to share between threads: every call takes a connection for itself. It brings the
function library back when the server lost it, waits out a failover or a restart, and never sends
a call twice unless that is harmless.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import redis

from headwater import instrument
from headwater.errors import StoreError
from headwater.instrument import Instrument
from headwater.store import faults, rights
from headwater.store.call import Call, Clock, Look, Many, Operation, Request, Token, Wait
from headwater.store.commands import encoder
from headwater.store.connections import StoreConnections, open_connections
from headwater.store.directory import default_directory
from headwater.store.embedded import EmbeddedServer
from headwater.store.library import library, needs_loading
from headwater.store.many import chunks
from headwater.store.observing import Observed, RequestObservation
from headwater.store.url import resolve

T = TypeVar("T")

GREETING = Call("hw_version", "", read_only=True)


def random_token() -> str:
    """Return a text of 8 characters that nobody can guess."""
    return secrets.token_hex(4)


class Store:
    """A connected store; ``run`` is all that the data types need of it."""

    def __init__(
        self,
        url: str | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        token: Callable[[], str] = random_token,
    ) -> None:
        """Connect, check the server and make sure that it has our functions.

        ``clock`` and ``token`` are what operations and names are given for time and for chance.

        Raises StoreUnreachable, AccessDenied, StoreTooOld, LibraryTooNew, EmbeddedServerFailed.
        """
        address = resolve(url, default_directory())
        self.clock, self.token = clock, token
        self.where = address.safe
        self.kind = address.kind
        self.server: EmbeddedServer | None = None
        if address.directory is not None:
            self.server = EmbeddedServer.open(address.directory)
        self.connections: StoreConnections = open_connections(address, self.server)
        self._encode = encoder(address.kind)
        try:
            self.version = self._first_contact()
        except BaseException:
            self.close()
            raise

    def _first_contact(self) -> str:
        try:
            return self._check_and_load()
        except (redis.RedisError, OSError) as error:
            fault = error
        recovery = self._recovery(GREETING if self.server else None, None)
        return self._retry(recovery, fault, self._check_and_load)

    def _check_and_load(self) -> str:
        infos = [faults.parse_info(reply) for reply in self.command("INFO", "server")]
        versions = [faults.check_server(info, self.where) for info in infos]
        if self.kind != "cluster":
            faults.refuse_node(infos[0], self.where)
        self.load_library()
        cluster = self.kind == "cluster"
        for denied in self.command(*rights.request(cluster)):
            rights.check(denied, self.where, cluster)
        return versions[0]

    def load_library(self) -> None:
        """Give every server our function library unless it has this one.

        Raises LibraryTooNew, before anything is changed, when one of them has a newer.
        """
        lacking = []
        for server in self.connections.servers():
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
                    reply = self.ask(request, patience_s)
                except (faults.Refusal, StoreError) as error:
                    # An operation may know better than to fail: its main part may be done.
                    request = operation.throw(error)
                else:
                    request = operation.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result

    def ask(
        self,
        request: Request,
        patience_s: float | None = None,
        observation: RequestObservation | None = None,
    ) -> Any:
        """Do one request, recovering from what can be recovered from, and report it."""
        found = instrument.current()
        if found is not None and observation is None and not isinstance(request, (Clock, Token)):
            return self._ask_observed(found, request, patience_s)
        if not isinstance(request, (Call, Wait)):
            if isinstance(request, Look):
                return self._look(request)
            if isinstance(request, Many):
                return self._ask_many(request, patience_s, observation)
            return self.token() if isinstance(request, Token) else self.clock() * 1000
        command = self._encode(request)
        fresh = not (isinstance(request, Wait) or request.repeatable or request.read_only)
        try:
            return self.connections.send(request.key, command, fresh=fresh)
        except (redis.RedisError, OSError) as error:
            fault = error
        again = partial(self.connections.send, request.key, command, fresh=True)
        recovery = self._recovery(request, patience_s)
        if observation is not None:
            observation.retried = True
        return self._retry(recovery, fault, again)

    def _ask_observed(self, found: Instrument, request: Observed, patience_s: float | None) -> Any:
        observation = RequestObservation(found, request, self.where)
        try:
            reply = self.ask(request, patience_s, observation)
        except BaseException as error:
            observation.fail(error)
            raise
        observation.succeed(reply)
        return reply

    def _ask_many(
        self, request: Many, patience_s: float | None, observation: RequestObservation | None
    ) -> list[Any]:
        """Run calls, thousands in a round trip; each recovers as a single one does."""
        replies: list[Any] = []
        for chunk in chunks(request, partial(self._recovery, patience_s=patience_s)):
            found = self._send_all(chunk.unanswered)
            while (before := chunk.take(found)) is not None:
                if observation is not None:
                    observation.retried = True
                try:
                    self._prepare(*before)
                except (redis.RedisError, OSError) as error:
                    found = [error] * len(chunk.unanswered)
                else:
                    found = self._send_all(chunk.unanswered)
            replies += chunk.replies
        return replies

    def _send_all(self, calls: Sequence[Call]) -> list[Any]:
        keyed = [(call.key, self._encode(call)) for call in calls]
        return self.connections.send_all(keyed)

    def _look(self, request: Look) -> list[Any] | None:
        """Run commands that only read, in one round trip; None when that did not work at once."""
        keyed = [(request.key, command) for command in request.commands]
        replies = self.connections.send_all(keyed)
        return None if any(isinstance(reply, Exception) for reply in replies) else replies

    def _recovery(self, request: Call | Wait | None, patience_s: float | None) -> faults.Recovery:
        return faults.Recovery(request, self.where, patience_s, self.clock)

    def _retry(self, recovery: faults.Recovery, fault: Exception, attempt: Callable[[], T]) -> T:
        """Try again until it succeeds or the caller must know."""
        while True:
            step = recovery.next_step(fault)
            try:
                self._prepare(step, recovery.delay_s)
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
                self.connections.renew()
        except (redis.RedisError, OSError) as error:
            raise faults.unsent(error) from error

    def command(self, *words: Any) -> list[Any]:
        """Run an administrative command on every server that takes writes."""
        return [server.send("", words, fresh=True) for server in self.connections.servers()]

    def close(self) -> None:
        """Close all connections and give up the hold on the embedded server."""
        self.connections.close()
        if self.server is not None:
            self.server.close()
