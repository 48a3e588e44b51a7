"""The blocking store: runs operations over one server, a cluster or the embedded server.

A store is safe to share between threads: every call takes a connection for itself. It loads the
function library again when the server lost it, waits for a failover or a restart to end, and never
sends a call twice unless that is harmless.

Written twice because a call is cut short in other ways: by an exception in its thread, or by
cancelling its task, of which thousands may end at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import redis

from headwater.errors import HeadwaterError, StoreError
from headwater.kernel import instrument
from headwater.kernel.instrument import Instrument
from headwater.store import faults
from headwater.store.call import (
    Call,
    Clock,
    Look,
    Many,
    Operation,
    Request,
    ScanKeys,
    Token,
    Wait,
    YieldTurn,
)
from headwater.store.connections import StoreConnections, open_connections
from headwater.store.directory import default_directory
from headwater.store.embedded import EmbeddedServer
from headwater.store.faults import Observed, RequestObservation
from headwater.store.interception import InterceptedConnections, interceptor_of
from headwater.store.steps import Steps, StoreSteps, leave_of, random_token
from headwater.store.url import resolve

T = TypeVar("T")


def _call(call: Callable[[], Any]) -> Any:
    return call()


class Store(StoreSteps):
    """A connected store; ``run`` is all that the data types need of it."""

    connections: StoreConnections

    def __init__(
        self,
        url: str | None = None,
        *,
        wait_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        token: Callable[[], str] = random_token,
    ) -> None:
        """Connect, check the server and make sure that it has our functions.

        It waits as long as a call for a store that is not ready. As long as no server of the store
        answers, ``wait_s`` is the limit; without it, a store where nobody listens is not waited
        for. ``clock`` and ``token`` are the sources of time and of randomness for operations.

        Raises StoreUnreachable, TooManyClients, AccessDenied, StoreTooOld, FormatTooNew,
        EmbeddedServerFailed.
        """
        address = resolve(url, default_directory())
        server = None
        if address.directory is not None:
            server = EmbeddedServer.open(address.directory)
        connections = open_connections(address, server)
        if (interceptor := interceptor_of(address.safe)) is not None:
            connections = InterceptedConnections(connections, interceptor)
        super().__init__(
            address,
            server,
            connections,
            clock,
            token,
            sleep=time.sleep,
            apart=_call,
            check_rights=True,
        )
        try:
            self.version = self._do(self._first_contact(wait_s))
        except BaseException:
            self.close()
            raise

    def run(self, operation: Operation[T], patience_s: float | None = None) -> T:
        """Run an operation and return its result.

        ``patience_s`` is how long each of its calls waits for a server that is down; a caller that
        has other work, or must be able to stop, waits less than the default.
        """
        try:
            request = operation.send(None)
            while True:
                if (leave := leave_of(request)) is not None:
                    # It is due until the operation ends: a later request may be the one cut short.
                    self._leaves[id(operation)] = leave
                try:
                    reply = self.ask(request, patience_s)
                except (faults.Refusal, HeadwaterError) as error:
                    # The operation decides whether to fail: its main part may be done.
                    request = operation.throw(error)
                else:
                    request = operation.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result
        except StoreError:
            raise
        except BaseException:
            if (due := self._leaves.pop(id(operation), None)) is not None:
                self._leave([due])
            raise
        finally:
            self._leaves.pop(id(operation), None)

    def _leave(self, calls: Sequence[Call]) -> None:
        """Send what undoes requests; what does not arrive is undone by its own expiry."""
        with contextlib.suppress(StoreError):
            self.connections.send_all(self._keyed(calls))

    def ask(
        self,
        request: Request,
        patience_s: float | None = None,
        observation: RequestObservation | None = None,
    ) -> Any:
        """Do one request, recovering from what can be recovered from, and report it."""
        found = instrument.current()
        if (
            found is not None
            and observation is None
            and not isinstance(request, (Clock, ScanKeys, Token, YieldTurn))
        ):
            return self._ask_observed(found, request, patience_s)
        if self.clock() >= self._note_at:
            self._do(self._note_again())
        if isinstance(request, Call):
            fresh, wait_s = not (request.repeatable or request.read_only), None
        elif isinstance(request, Wait):
            fresh, wait_s = False, request.timeout_ms / 1000
        elif isinstance(request, Look):
            return self._do(self._look(request))
        elif isinstance(request, Many):
            return self._do(self._ask_many(request, patience_s, observation))
        elif isinstance(request, ScanKeys):
            return self._do(self._scan(request, patience_s))
        elif isinstance(request, YieldTurn):
            return self._sleep(request.pause_s) if request.pause_s else None
        else:
            return self.token() if isinstance(request, Token) else self.clock() * 1000
        command = self._encode(request)
        try:
            return self.connections.send(request.key, command, fresh=fresh, wait_s=wait_s)
        except (redis.RedisError, OSError) as error:
            fault = error
        if observation is not None:
            observation.retried = True
        return self._do(self._recover(request, command, fault, patience_s))

    def _ask_observed(self, found: Instrument, request: Observed, patience_s: float | None) -> Any:
        observation = RequestObservation(found, request, self.where)
        try:
            reply = self.ask(request, patience_s, observation)
        except BaseException as error:
            observation.fail(error)
            raise
        observation.succeed(reply)
        return reply

    def _do(self, steps: Steps[T]) -> T:
        try:
            step = steps.send(None)
            while True:
                fault = found = None
                try:
                    found = step()
                except Exception as error:  # noqa: BLE001  the steps know what it means
                    fault = error
                step = steps.send(found) if fault is None else steps.throw(fault)
        except StopIteration as done:
            result: T = done.value
            return result

    def command(self, *words: Any) -> list[Any]:
        """Run an administrative command on every server that takes writes."""
        return self._do(self._command(*words))

    def note_release(self) -> None:
        """Note this client in the store's record, and let our functions write the format in use."""
        self._do(self._note())

    def close(self) -> None:
        """Close all connections and give up the hold on the embedded server."""
        if self._leaves:
            self._leave(list(self._leaves.values()))
        self.connections.close()
        if self.server is not None:
            self.server.close()
