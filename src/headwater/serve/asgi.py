"""The HTTP API as an ASGI application: in a server of yours, alone or mounted in another app.

The same table of routes as `headwater serve` has, with the same checks in the same order: who asks
is decided before a body is read. Connections, TLS and their limits are those of the server around
it. Who may ask is always said: by a file of tokens, or by the application around this one, which
has found out who its client is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeAlias
from urllib.parse import quote, unquote

from headwater.aio_client import connect
from headwater.errors import HeadwaterError, InvalidInput
from headwater.kernel.failures import START_MS
from headwater.kernel.inputs import check_int
from headwater.kernel.instrument import also_installed
from headwater.kernel.packaging import extra_needed
from headwater.kernel.profiles import store_of
from headwater.metrics.history import MOST_SERIES
from headwater.metrics.operations import OperationMetrics
from headwater.serve.api.opening import ApiSettings, open_api, open_farm
from headwater.serve.batching import StreamWrites
from headwater.serve.http.authorization import check_origin, cookie_credentials
from headwater.serve.http.messages import (
    Admitted,
    Handler,
    Refused,
    Reply,
    Request,
    StreamedReply,
    own_fault,
)
from headwater.serve.limits import HttpLimits
from headwater.serve.tokens import Grant, TokenFile, Tokens
from headwater.store.faults import Caller

log = logging.getLogger("headwater.serve")

AsgiEvent: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[AsgiEvent]]
Send: TypeAlias = Callable[[AsgiEvent], Awaitable[None]]

# Replies that have no body, and say nothing of its length.
_BODILESS: Final = (204, 304)


async def wait_until_gone(receive: Receive) -> None:
    """Wait until the client of a request has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


class AsgiReplies:
    """The replies of an application; endless ones are ended with it."""

    def __init__(self) -> None:
        self._endless: set[asyncio.Task[None]] = set()

    async def send(
        self, reply: Reply | StreamedReply, receive: Receive, send: Send, *, bodiless: bool
    ) -> None:
        """Send a reply; without its body for a client that asked for the head only."""
        if isinstance(reply, Reply):
            body = b"" if bodiless else reply.body
            length = None if reply.status in _BODILESS else len(reply.body)
            await send(_start(reply, length))
            await send({"type": "http.response.body", "body": body})
            return
        await send(_start(reply, None))
        if bodiless:
            await reply.pieces.aclose()
            await send({"type": "http.response.body", "body": b""})
            return
        await self._stream(reply, receive, send)

    async def _stream(self, reply: StreamedReply, receive: Receive, send: Send) -> None:
        """Send the pieces of a reply until it ends, or its client is gone."""
        sending = asyncio.ensure_future(_send_pieces(reply, send))
        gone = asyncio.ensure_future(wait_until_gone(receive))
        if reply.endless:
            self._endless.add(sending)
            sending.add_done_callback(self._endless.discard)
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
            is_complete = sending.done()
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.wait((sending, gone))
        if not is_complete:
            return
        if not sending.cancelled() and (error := sending.exception()) is not None:
            # The server around this closes the connection, by which the client notices it.
            log.error("a reply was cut off: its next piece could not be made", exc_info=error)
            raise error
        await send({"type": "http.response.body", "body": b""})

    async def end(self) -> None:
        """End what would never end, as whole replies."""
        ending = list(self._endless)
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)


async def _send_pieces(reply: StreamedReply, send: Send) -> None:
    try:
        async for piece in reply.pieces:
            if piece:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
    finally:
        await reply.pieces.aclose()


def _start(reply: Reply | StreamedReply, length: int | None) -> AsgiEvent:
    headers = [(b"content-type", reply.content_type.encode())]
    if length is not None:
        headers.append((b"content-length", b"%d" % length))
    for line in reply.headers.split(b"\r\n"):
        name, colon, value = line.partition(b": ")
        if colon:
            headers.append((name.lower(), value))
    return {"type": "http.response.start", "status": reply.status, "headers": headers}


AsgiScope: TypeAlias = MutableMapping[str, Any]
# Says what the client of a request may do; None for one that may ask for nothing.
GrantOf: TypeAlias = Callable[[AsgiScope], Grant | None]

_MAX_BODY: Final = HttpLimits().max_body


class GrantedHandler(Handler, Protocol):
    """A handler that also serves clients whom somebody else has let in."""

    def admit_as(self, method: str, path: str, grant: Grant | None) -> Admitted:
        """Decide on a request of a client with these rights; None is nobody; raises Refused."""

    async def close(self) -> None:
        """Wait until no request is under way."""


# What is served in front of the API, as the console is.
Front: TypeAlias = "Callable[[Any], GrantedHandler]"


class _ClientGone(Exception):
    """The client has closed its connection before its request was complete."""


def asgi_app(
    store: str | None = None,
    *,
    tokens: str | Path | None = None,
    grant: Grant | GrantOf | None = None,
    farm: str | None = None,
    db: str | None = None,
    read_only: bool = False,
    requests_per_s: int = 0,
    origins: tuple[str, ...] = (),
    max_body: int = _MAX_BODY,
    console: bool = False,
    history: int = MOST_SERIES,
) -> AsgiApp:
    """Return the HTTP API of a store as an ASGI application.

    Who may ask is said by one of two: ``tokens`` is the file of ``headwater token``, and clients
    send theirs as ``Authorization: Bearer``; ``grant`` is what every client may do, or a function
    that returns it for the ASGI scope of a request, because the application around this one has let
    the client in. ``farm`` has the timelines, ``db`` is the URL of an outbox.
    Everything is as in ``headwater serve``. With ``console``, its pages are served under /console,
    which needs the extra `serve`; ``history`` is how many series of history it keeps in the store.

    Its lifespan opens and closes the client of the store. Applications do not pass theirs on to
    what they mount: enter this one in it, ``async with api: yield``.

    Raises InvalidInput if it is not said who may ask, and ExtraMissing.
    """
    if (tokens is None) is (grant is None):
        raise InvalidInput(
            "it must be said who may ask: give either tokens, a file made by `headwater token`, or "
            "grant, what the clients that your application lets in may do"
        )
    check_int(max_body, "max_body", 1, 1 << 30)
    settings = ApiSettings(
        store_of(store, None),
        Tokens() if tokens is None else TokenFile(Path(tokens)),
        read_only,
        requests_per_s,
        tuple(origins),
        check_origin,
        farm,
        db,
        history=history if console else 0,
    )
    settings.check()
    return AsgiApp(settings, grant, max_body, _console() if console else None)


def _console() -> Front:
    with extra_needed("serve"):
        from headwater.serve.console.service import Console
    return Console


class AsgiApp:
    """An ASGI 3 application; ``asgi_app`` makes it.

    It serves between the begin and the end of its lifespan, or of an ``async with`` block.
    """

    def __init__(
        self,
        settings: ApiSettings,
        grant: Grant | GrantOf | None,
        max_body: int,
        front: Front | None = None,
    ) -> None:
        self._settings = settings
        self._front = front
        self._grant = grant
        self._max_body = max_body
        self._service: GrantedHandler | None = None
        self._replies = AsgiReplies()
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self._service is not None:
            raise InvalidInput("this application is open already; enter it once")
        async with AsyncExitStack() as opening:
            metrics = OperationMetrics()
            opening.enter_context(also_installed(metrics))
            connecting = connect(self._settings.store_url, wait_ms=START_MS)
            hw = await opening.enter_async_context(connecting)
            farm = await opening.enter_async_context(open_farm(self._settings.farm))
            service: GrantedHandler = await opening.enter_async_context(
                open_api(self._settings, hw, StreamWrites(hw), metrics, farm)
            )
            if self._front is not None:
                service = self._front(service)
                opening.push_async_callback(service.close)
            self._service = service
            self._opened = opening.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._service = None
        await self._replies.end()
        await self._opened.aclose()

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve one connection or request, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        elif self._service is None:
            raise InvalidInput(
                "the API is not open, because the application that mounts it does not pass on the "
                "lifespan; enter it there: async with api: yield"
            )
        else:
            await self._serve(self._service, scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.__aenter__()
        except HeadwaterError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.__aexit__()
        await send({"type": "lifespan.shutdown.complete"})

    async def _serve(
        self, service: GrantedHandler, scope: AsgiScope, receive: Receive, send: Send
    ) -> None:
        root, path = _target(scope)
        headers = _headers(scope, service.headers)
        try:
            admitted = self._admit(service, scope, path)
            body = await self._body(scope, admitted, receive)
        except _ClientGone:
            return
        except Refused as refused:
            reply: Reply | StreamedReply = service.refuse(refused)
        else:
            request = Request(
                scope["method"],
                path,
                scope.get("query_string", b"").decode("latin-1"),
                admitted.action,
                True,
                body,
                headers=headers,
                root=root,
                caller=(caller := Caller()),
            )
            try:
                reply = await _answered(service, request, caller, receive)
            except _ClientGone:
                return
        service.count(reply)
        await self._replies.send(reply, receive, send, bodiless=scope["method"] == "HEAD")

    def _admit(self, service: GrantedHandler, scope: AsgiScope, path: str) -> Admitted:
        method = scope["method"]
        if self._grant is not None:
            grant = self._grant if isinstance(self._grant, Grant) else self._grant(scope)
            return service.admit_as(method, path, grant)
        shown = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(shown) > 1:
            raise Refused(400, "the request has two Authorization headers; send one")
        cookies = b"; ".join(value for name, value in scope["headers"] if name == b"cookie")
        credentials = shown[0] if shown else cookie_credentials(cookies) or b""
        return service.admit(method, path, credentials.strip().decode("latin-1"))

    async def _body(self, scope: AsgiScope, admitted: Admitted, receive: Receive) -> bytes:
        """Read the body of a request that was admitted; raises Refused, _ClientGone."""
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        most = self._max_body if admitted.known else admitted.strange_bytes
        if length.isdigit() and int(length) > most:
            raise self._too_large(admitted)
        pieces = []
        size = 0
        more = True
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise _ClientGone
            piece = event.get("body", b"")
            size += len(piece)
            if size > most:
                raise self._too_large(admitted)
            pieces.append(piece)
            more = event.get("more_body", False)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _too_large(self, admitted: Admitted) -> Refused:
        if not admitted.known:
            return Refused(401, "a request with a body needs a token here")
        return Refused(413, f"a body may have {self._max_body} bytes here; send smaller batches")


async def _answered(
    service: GrantedHandler, request: Request, caller: Caller, receive: Receive
) -> Reply | StreamedReply:
    """Return the answer to a request; raises _ClientGone if its caller does not wait any more."""
    answer: asyncio.Future[Reply | StreamedReply] = asyncio.get_running_loop().create_future()

    def answered(reply: Reply | StreamedReply) -> None:
        if not answer.done():
            answer.set_result(reply)

    try:
        end = service.handle(request, answered)
    except Exception as error:  # noqa: BLE001  whatever it is, the client waits for an answer
        return service.refuse(own_fault(error))
    if answer.done():
        return answer.result()
    gone = asyncio.ensure_future(wait_until_gone(receive))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise _ClientGone
        return answer.result()
    finally:
        gone.cancel()
        if not answer.done():
            caller.gone = True
            if end is not None:
                end()


def _headers(scope: AsgiScope, kept: frozenset[bytes]) -> dict[bytes, bytes]:
    """Return the headers that are looked at; one that is given twice has both values."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in kept:
            found[name] = b"%b, %b" % (found[name], value) if name in found else value
    return found


def _target(scope: AsgiScope) -> tuple[str, str]:
    """Return where the application is mounted, and the path of a request from there on.

    Names in a path are percent-encoded, and only the raw path has them so.
    """
    root = scope.get("root_path", "").rstrip("/")
    raw = scope.get("raw_path")
    path = quote(scope["path"]) if raw is None else raw.decode("latin-1").partition("?")[0]
    parts = path.split("/")
    depth = root.count("/") + 1
    if root and unquote("/".join(parts[:depth])) == root:
        return root, "/" + "/".join(parts[depth:])
    return root, path
