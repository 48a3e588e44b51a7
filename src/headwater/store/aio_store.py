"""The async store: the same operations and the same recovery, without blocking the event loop.

A store belongs to the event loop it was opened in; its tasks may all use it at once.

Written twice because a call is cut short in other ways: by an exception in its thread, or by
cancelling its task, of which thousands may end at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import redis

from headwater.errors import HeadwaterError, StoreError
from headwater.kernel import instrument
from headwater.kernel.instrument import Instrument
from headwater.store import faults
from headwater.store.aio_connections import AsyncStoreConnections, open_connections
from headwater.store.aio_interception import AsyncInterceptedConnections
from headwater.store.aio_pipe import AsyncPipe
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
from headwater.store.directory import default_directory
from headwater.store.embedded import EmbeddedServer
from headwater.store.faults import Observed, RequestObservation
from headwater.store.interception import interceptor_of
from headwater.store.steps import LEAVE_TIMEOUT_S, Steps, StoreSteps, leave_of, random_token
from headwater.store.url import Address, resolve

T = TypeVar("T")


class AsyncStore(StoreSteps):
    """A connected store for asyncio; ``run`` is all that the data types need of it."""

    connections: AsyncStoreConnections
    _leaver: asyncio.Task[None] | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._leaving: list[Call] = []

    @classmethod
    async def open(
        cls,
        url: str | None = None,
        *,
        check_rights: bool = True,
        wait_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        token: Callable[[], str] = random_token,
    ) -> AsyncStore:
        """Connect, check the server and make sure that it has our functions.

        Without ``check_rights``, the user need not have rights on our own keys: timelines are under
        keys that their users chose. Store says more about the other arguments.

        Raises StoreUnreachable, TooManyClients, AccessDenied, StoreTooOld, FormatTooNew,
        EmbeddedServerFailed.
        """
        address = resolve(url, default_directory())
        server = None
        if address.directory is not None:
            server = await asyncio.to_thread(EmbeddedServer.open, address.directory)
        store = cls(
            address,
            server,
            connections_to(address, server),
            clock,
            token,
            sleep=asyncio.sleep,
            apart=asyncio.to_thread,
            check_rights=check_rights,
        )
        try:
            store.version = await store._do(store._first_contact(wait_s))
        except BaseException:
            await store.close()
            raise
        return store

    async def run(self, operation: Operation[T], patience_s: float | None = None) -> T:
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
                    reply = await self.ask(request, patience_s)
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
        except (asyncio.CancelledError, Exception):
            if (due := self._leaves.pop(id(operation), None)) is not None:
                await self._leave([due])
            raise
        finally:
            self._leaves.pop(id(operation), None)

    async def _leave(self, calls: Sequence[Call]) -> None:
        """Send what undoes requests; what does not arrive is undone by its own expiry.

        All that are cancelled at the same time share a connection: there may be thousands.
        """
        self._leaving += calls
        if self._leaver is None:
            self._leaver = asyncio.create_task(self._send_leaves())
        with contextlib.suppress(TimeoutError):
            # Not cancelled with its caller: others wait for it, too.
            await asyncio.wait_for(asyncio.shield(self._leaver), LEAVE_TIMEOUT_S)

    async def _send_leaves(self) -> None:
        try:
            while self._leaving:
                calls, self._leaving = self._leaving, []
                with contextlib.suppress(StoreError):
                    await self.connections.send_all(self._keyed(calls))
        finally:
            self._leaver = None

    async def ask(
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
            return await self._ask_observed(found, request, patience_s)
        if self.clock() >= self._note_at:
            await self._do(self._note_again())
        if isinstance(request, Call):
            fresh, wait_s = not (request.repeatable or request.read_only), None
        elif isinstance(request, Wait):
            fresh, wait_s = False, request.timeout_ms / 1000
        elif isinstance(request, Look):
            return await self._do(self._look(request))
        elif isinstance(request, Many):
            return await self._do(self._ask_many(request, patience_s, observation))
        elif isinstance(request, ScanKeys):
            return await self._do(self._scan(request, patience_s))
        elif isinstance(request, YieldTurn):
            return await asyncio.sleep(request.pause_s)
        else:
            return self.token() if isinstance(request, Token) else self.clock() * 1000
        command = self._encode(request)
        try:
            return await self.connections.send(request.key, command, fresh=fresh, wait_s=wait_s)
        except (redis.RedisError, OSError) as error:
            fault = error
        if observation is not None:
            observation.retried = True
        return await self._do(self._recover(request, command, fault, patience_s))

    async def _ask_observed(
        self, found: Instrument, request: Observed, patience_s: float | None
    ) -> Any:
        observation = RequestObservation(found, request, self.where)
        try:
            reply = await self.ask(request, patience_s, observation)
        except BaseException as error:
            observation.fail(error)
            raise
        observation.succeed(reply)
        return reply

    async def _do(self, steps: Steps[T]) -> T:
        try:
            step = steps.send(None)
            while True:
                fault = found = None
                try:
                    found = await step()
                except Exception as error:  # noqa: BLE001  the steps know what it means
                    fault = error
                step = steps.send(found) if fault is None else steps.throw(fault)
        except StopIteration as done:
            result: T = done.value
            return result

    async def command(self, *words: Any) -> list[Any]:
        """Run an administrative command on every server that takes writes."""
        return await self._do(self._command(*words))

    async def pipe(self, timeout_s: float) -> AsyncPipe:
        """Open a connection to a store of one server that many calls share; raises Unsent."""
        (server,) = await self.connections.servers()
        return await server.pipe(timeout_s, self.where)

    async def close(self) -> None:
        """Close all connections and give up the hold on the embedded server."""
        if self._leaves or self._leaver is not None:
            await self._leave(list(self._leaves.values()))
        await self.connections.close()
        if self.server is not None:
            await asyncio.to_thread(self.server.close)


def connections_to(address: Address, server: EmbeddedServer | None) -> AsyncStoreConnections:
    """Return the connections of a store, whose calls may be intercepted."""
    connections = open_connections(address, server)
    if (interceptor := interceptor_of(address.safe)) is not None:
        return AsyncInterceptedConnections(connections, interceptor)
    return connections
