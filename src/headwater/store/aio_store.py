"""The async store: runs operations over one server, a cluster or the embedded server.

It loads the function library again when the server lost it, waits for a failover or a restart to
end, and never sends a call twice unless that is harmless. A blocking store is safe to share between
threads: every call takes a connection for itself. An async one belongs to the event loop it was
opened in; its tasks may all use it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import redis

from headwater.errors import BrokenObject, FormatTooNew, HeadwaterError, StoreError
from headwater.kernel import instrument
from headwater.kernel.failures import Outage
from headwater.kernel.instrument import Instrument
from headwater.store import faults, rights
from headwater.store.aio_connections import open_connections
from headwater.store.aio_pipe import AsyncPipe
from headwater.store.call import (
    Call,
    Clock,
    Key,
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
from headwater.store.library import (
    FIRST_FORMAT,
    FORMAT,
    GREETING,
    KEY,
    LOOK,
    NOTE,
    NOTE_S,
    encoder,
    format_of_ours,
    library,
    name_in_server,
    needs_loading,
)
from headwater.store.many import chunks
from headwater.store.url import Address, resolve

ASYNC: Final = True  # the twin has what is under else

T = TypeVar("T")

log = logging.getLogger("headwater.store")

# How a request is cut short: by cancelling its task, or by an exception in its thread.
if ASYNC:
    INTERRUPTIONS = (asyncio.CancelledError, Exception)
    # How long a cancelled call waits until the server has taken it out of the line.
    LEAVE_TIMEOUT_S = 1.0
else:
    INTERRUPTIONS = BaseException


def random_token() -> str:
    """Return an unguessable text of 8 characters."""
    return secrets.token_hex(4)


class _AwaitedStore(Outage):
    """The time until a store is there for the first time."""

    BEGIN = "waiting for the store at %s, %s: %s"
    END = "the store at %s is there, after %.1f s and %d tries"


class AsyncStore:
    """A connected store; ``run`` is all that the data types need of it."""

    def __init__(
        self,
        address: Address,
        server: EmbeddedServer | None,
        clock: Callable[[], float] = time.monotonic,
        token: Callable[[], str] = random_token,
        *,
        check_rights: bool = True,
    ) -> None:
        self.where = address.safe
        self.kind = address.kind
        self.server = server
        self.connections = open_connections(address, server)
        self.clock, self.token = clock, token
        self.version = ""
        self._encode = encoder(address.kind)
        self._check_rights = check_rights
        # What waiting requests must undo when the client is closed meanwhile.
        self._leaves: dict[int, Call] = {}
        if ASYNC:
            self._leaving: list[Call] = []
            self._leaver: asyncio.Task[None] | None = None
        # The format that our library writes, and when this client has to note itself again. Who
        # need not have rights on our keys uses timelines only, which have no format of ours.
        self._writes = FIRST_FORMAT
        self._note_at = math.inf

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

        It waits as long as a call for a store that is not ready. As long as no server of the store
        answers, ``wait_s`` is the limit; without it, a store where nobody listens is not waited
        for. Without ``check_rights``, the user need not have rights on our own keys: timelines are
        under keys that their users chose. ``clock`` and ``token`` are the sources of time and of
        randomness for operations.

        Raises StoreUnreachable, TooManyClients, AccessDenied, StoreTooOld, FormatTooNew,
        EmbeddedServerFailed.
        """
        address = resolve(url, default_directory())
        server = None
        if address.directory is not None:
            server = await asyncio.to_thread(EmbeddedServer.open, address.directory)
        store = cls(address, server, clock, token, check_rights=check_rights)
        try:
            await store._meet(wait_s)
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
                leave = request.leave if isinstance(request, (Call, Wait)) else None
                if leave is not None:
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
        except INTERRUPTIONS:
            if (due := self._leaves.pop(id(operation), None)) is not None:
                await self._leave([due])
            raise
        finally:
            self._leaves.pop(id(operation), None)

    if ASYNC:

        async def _leave(self, calls: Sequence[Call]) -> None:
            """Send what undoes requests; what does not arrive is undone by its own expiry.

            All that are cancelled at the same time share a connection: there may be thousands.
            """
            self._leaving += calls
            if self._leaving and self._leaver is None:
                self._leaver = asyncio.create_task(self._send_leaves())
            if self._leaver is not None:
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

    else:

        def _leave(self, calls: Sequence[Call]) -> None:
            """Send what undoes requests; what does not arrive is undone by its own expiry."""
            if calls:
                with contextlib.suppress(StoreError):
                    self.connections.send_all(self._keyed(calls))

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
            await self._note_again()
        if isinstance(request, Call):
            fresh, wait_s = not (request.repeatable or request.read_only), None
        elif isinstance(request, Wait):
            fresh, wait_s = False, request.timeout_ms / 1000
        elif isinstance(request, Look):
            return await self._look(request)
        elif isinstance(request, Many):
            return await self._ask_many(request, patience_s, observation)
        elif isinstance(request, ScanKeys):
            return await self._scan(request, patience_s)
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

        async def again() -> Any:
            return await self.connections.send(request.key, command, fresh=True, wait_s=wait_s)

        return await self._retry(self._recovery(request, patience_s), fault, again)

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

    async def command(self, *words: Any) -> list[Any]:
        """Run an administrative command on every server that takes writes."""
        return await self._send_to_all(words)

    async def _send_to_all(self, command: tuple[Any, ...]) -> list[Any]:
        servers = await self.connections.servers()
        return [await server.send("", command, fresh=True) for server in servers]

    if ASYNC:

        async def pipe(self, timeout_s: float) -> AsyncPipe:
            """Open a connection to a store of one server that many calls share; raises Unsent."""
            (server,) = await self.connections.servers()
            return await server.pipe(timeout_s, self.where)

    async def close(self) -> None:
        """Close all connections and give up the hold on the embedded server."""
        await self._leave(list(self._leaves.values()))
        await self.connections.close()
        if self.server is not None:
            await asyncio.to_thread(self.server.close)

    # ── First contact ────────────────────────────────────────────────────────────────────────

    async def _meet(self, wait_s: float | None) -> None:
        """Check every server of the store and load our functions.

        Waits as a call does for a store that is not ready, but only ``wait_s`` as long as no server
        of it has answered; without that, not at all for one where nobody listens.
        """
        # An embedded server was just started, or attached to: it is there.
        absent_s = None if self.server else wait_s
        first = self.server is None and wait_s is None
        recovery = faults.Recovery(
            GREETING, self.where, None, self.clock, absent_s=absent_s, first=first
        )
        try:
            await self._check_and_load(recovery)
            return
        except (redis.RedisError, OSError) as error:
            fault = error
        most_s = faults.PATIENCE_S if absent_s is None else absent_s
        outage = _AwaitedStore(self.where, log, self.clock, most_s=most_s)
        await self._retry(recovery, fault, partial(self._check_and_load, recovery), outage)
        outage.over()

    async def _check_and_load(self, recovery: faults.Recovery) -> None:
        cluster = self.kind == "cluster"
        infos = []
        for server in await self.connections.servers():
            if cluster:
                # One of its servers has named the others.
                recovery.note_answer()
            reply = await server.send("", ("INFO", "server"), fresh=True)
            recovery.note_answer()
            infos.append(faults.parse_info(reply))
        versions = [faults.check_server(info, self.where) for info in infos]
        if not cluster:
            faults.refuse_node(infos[0], self.where)
        await self._load_library(first=self._check_rights)
        if self._check_rights:
            for denied in await self._send_to_all(rights.request(cluster)):
                rights.check(denied, self.where, cluster)
            await self._note_or_look()
        self.version = versions[0]

    async def _load_library(self, *, first: bool = False) -> None:
        """Load our function library into every server that has none or an older one.

        The first time, the record says which format it writes.
        """
        ask = ("FCALL", name_in_server("hw_version"), 0)
        for server in await self.connections.servers():
            try:
                identity = (await server.send("", ask, fresh=True)).decode()
            except redis.ResponseError as error:
                if "Function not found" not in str(error):
                    raise
                identity = None
            if first:
                first, known = False, format_of_ours(identity)
                self._writes = known or await self._look_up_format()
            if needs_loading(identity, self._writes):
                load = ("FUNCTION", "LOAD", "REPLACE", library(self._writes).source)
                await server.send("", load, fresh=True)

    async def _look_up_format(self) -> int:
        """Return the format in use; a store without a record begins with what we understand.

        Loading the library takes long, and so it is loaded once.
        """
        try:
            reply = await self.connections.send(KEY, ("HGET", KEY, "format"), fresh=True)
        except redis.ResponseError:
            return FIRST_FORMAT
        return min(int(reply or FORMAT), FORMAT)

    async def note_release(self) -> None:
        """Note in the store's record that a client of this release is here.

        Also learns which format is in use, and lets our functions write it.
        """
        self._note_at = self.clock() + NOTE_S
        in_use = await self.connections.send(KEY, self._encode(NOTE), fresh=True)
        if in_use > self._writes:
            self._writes = in_use
            # A user who may not load functions continues with those that are there.
            with contextlib.suppress(redis.exceptions.NoPermissionError):
                await self._load_library()

    async def _note_or_look(self) -> None:
        """Do so; a server that takes no writes now is only asked which format is in use.

        Raises FormatTooNew when we do not understand it.
        """
        try:
            await self.note_release()
            return
        except redis.ResponseError as error:
            faults.check_format(error, NOTE, self.where)
        with contextlib.suppress(redis.ResponseError):
            look = self._encode(LOOK)
            _, in_use, *_ = await self.connections.send(KEY, look, fresh=True)
            if in_use > FORMAT:
                raise FormatTooNew(f"the store at {self.where}", in_use, FORMAT)

    async def _note_again(self) -> None:
        """Do so in the middle of work, which fails only because of a format that is too new."""
        with contextlib.suppress(redis.RedisError, OSError):
            await self._note_or_look()

    # ── Recovery ─────────────────────────────────────────────────────────────────────────────

    def _recovery(self, request: Call | Wait, patience_s: float | None) -> faults.Recovery:
        return faults.Recovery(request, self.where, patience_s, self.clock)

    async def _retry(
        self,
        recovery: faults.Recovery,
        fault: Exception,
        attempt: Callable[[], Awaitable[T]],
        outage: Outage | None = None,
    ) -> T:
        """Repeat what failed, until it succeeds or the caller must get the error."""
        while True:
            step = recovery.next_step(fault)
            if outage is not None and step != "load":
                outage.meet(fault)
            try:
                await self._prepare(step, recovery.delay_s)
                recovery.check_caller(fault)
                return await attempt()
            except (redis.RedisError, OSError) as error:
                fault = error

    async def _prepare(self, step: faults.Step, delay_s: float) -> None:
        try:
            if step == "load":
                return await self._load_library()
            await asyncio.sleep(delay_s)
            if step == "renew":
                if self.server is not None:
                    await asyncio.to_thread(self.server.ensure_running)
                await self.connections.renew()
        except (redis.RedisError, OSError) as error:
            raise faults.unsent(error) from error

    # ── Many calls ───────────────────────────────────────────────────────────────────────────

    async def _ask_many(
        self, request: Many, patience_s: float | None, observation: RequestObservation | None
    ) -> list[Any]:
        """Run calls, thousands in a round trip."""
        replies: list[Any] = []
        for calls in chunks(request):
            replies += await self._ask_together(calls, patience_s, observation)
        return replies

    async def _ask_together(
        self,
        calls: Sequence[Call],
        patience_s: float | None,
        observation: RequestObservation | None,
    ) -> list[Any]:
        """Send calls together until each has a reply; each recovers as a single one does.

        Raises StoreError when one of them will not succeed.
        """
        replies: list[Any] = [None] * len(calls)
        recoveries: dict[int, faults.Recovery] = {}
        unanswered: Sequence[int] = range(len(calls))
        fault: Exception | None = None
        while True:
            if fault is None:
                keyed = self._keyed([calls[place] for place in unanswered])
                answers = await self.connections.send_all(keyed)
            else:
                answers = [fault] * len(unanswered)
            failed: list[int] = []
            delays: dict[faults.Step, float] = {}
            for place, answer in zip(unanswered, answers, strict=True):
                if not isinstance(answer, Exception):
                    replies[place] = answer
                    continue
                recovery = recoveries.get(place)
                if recovery is None:
                    recovery = recoveries[place] = self._recovery(calls[place], patience_s)
                try:
                    step = recovery.next_step(answer)
                except (faults.Refusal, BrokenObject) as refusal:
                    # It is for the operation that asked; the others have nothing to do with it.
                    replies[place] = refusal
                else:
                    failed.append(place)
                    delays[step] = max(delays.get(step, 0.0), recovery.delay_s)
            if not failed:
                return replies
            unanswered = failed
            if observation is not None:
                observation.retried = True
            step = next(step for step in faults.STEPS if step in delays)
            fault = None
            try:
                await self._prepare(step, delays[step])
            except (redis.RedisError, OSError) as error:
                fault = error

    def _keyed(self, calls: Sequence[Call]) -> list[tuple[Key, tuple[Any, ...]]]:
        return [(call.key, self._encode(call)) for call in calls]

    async def _scan(
        self, request: ScanKeys, patience_s: float | None
    ) -> tuple[int, bytes, list[bytes]]:
        """Ask one server for some of its keys; asks again when it was down."""

        async def attempt() -> tuple[int, bytes, list[bytes]]:
            servers = await self.connections.servers()
            server = servers[min(request.server, len(servers) - 1)]
            words = ("SCAN", request.cursor, "COUNT", request.page)
            cursor, keys = await server.send("", words, fresh=True)
            return len(servers), cursor, keys

        try:
            return await attempt()
        except (redis.RedisError, OSError) as error:
            fault = error
        return await self._retry(self._recovery(GREETING, patience_s), fault, attempt)

    async def _look(self, request: Look) -> list[Any] | None:
        """Run commands that only read, in one round trip; None when that did not work at once."""
        keyed = [(request.key, command) for command in request.commands]
        replies = await self.connections.send_all(keyed)
        return None if any(isinstance(reply, Exception) for reply in replies) else replies
