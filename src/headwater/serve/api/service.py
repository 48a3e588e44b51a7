"""Answers the requests of the API: who may ask, what was sent, and what the handler returns."""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias, cast
from urllib.parse import parse_qsl

import msgspec

from headwater.errors import HeadwaterError, InvalidInput
from headwater.kernel.declaring import Scope
from headwater.serve.api.calls import ApiCall, Rates, Served, WaitingCalls, media_type
from headwater.serve.api.formats import body_fault
from headwater.serve.api.routes import (
    JSON,
    Answered,
    NoQuery,
    Route,
    Router,
    problem_of,
    problem_of_refusal,
)
from headwater.serve.audit import audited
from headwater.serve.http.authorization import (
    LOOKED_AT,
    Cors,
    check_grant,
    check_local,
    is_bearer,
    shown_grant,
)
from headwater.serve.http.messages import (
    Admitted,
    Refused,
    Reply,
    Request,
    StreamedReply,
    own_fault,
)
from headwater.serve.tokens import Grant
from headwater.store.faults import call_for

Answer: TypeAlias = Callable[[Reply | StreamedReply], None]
Finish: TypeAlias = "Callable[[Answered | None, BaseException | None], None]"
_Work: TypeAlias = "Coroutine[Any, Any, Answered]"
Guard: TypeAlias = Callable[[dict[bytes, bytes] | None, Cors | None], None]

_ID: Final = re.compile(rb"[\w.:-]{1,64}", re.ASCII)
_HEADERS: Final = LOOKED_AT.union(
    (b"accept", b"content-encoding", b"content-type"),
    (b"if-none-match", b"last-event-id", b"x-request-id"),
)
_PREFLIGHT: Final = object()
_ANY: Final = ("*/*", "application/*")

_encode = msgspec.json.Encoder().encode


class _Admission(NamedTuple):
    """What was decided by the head of a request."""

    route: Route
    names: tuple[str, ...]
    grant: Grant


class ApiService:
    """Answers the requests of one process; a Handler of HTTP.

    A ``read_only`` one refuses all changes, from every client. Without tokens, ``guard`` refuses
    the requests of pages that are not meant.
    """

    def __init__(
        self,
        served: Served,
        router: Router,
        *,
        read_only: bool = False,
        rates: Rates | None = None,
        cors: Cors | None = None,
        guard: Guard = check_local,
    ) -> None:
        self._served = served
        self._router = router
        self._read_only = read_only
        self._rates = rates or Rates(0)
        self._cors = cors
        self._guard = guard
        self._decoders = {
            route: msgspec.json.Decoder(route.body)
            for route in router.routes
            if route.body is not None
        }
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waiting = WaitingCalls(served.tokens)
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    @property
    def served(self) -> Served:
        """What its requests share."""
        return self._served

    @property
    def read_only(self) -> bool:
        """Whether it refuses whatever changes something."""
        return self._read_only

    def guard(self, headers: dict[bytes, bytes] | None) -> None:
        """Refuse the request of a page that is not meant; raises Refused."""
        if not self.needs_token:
            self._guard(headers, self._cors)

    @property
    def needs_token(self) -> bool:
        """Whether a client is anonymous until it shows a token."""
        return self._served.tokens.required

    @property
    def headers(self) -> frozenset[bytes]:
        """The names of the headers that it looks at, in lower case."""
        return _HEADERS

    def admit(self, method: str, path: str, authorization: str) -> Admitted:
        """Decide on a request by its head: its route, its token, its rate; raises Refused."""
        grant = shown_grant(self._served.tokens, authorization)
        return self.admit_as(method, path, grant, shown=is_bearer(authorization))

    def admit_as(
        self, method: str, path: str, grant: Grant | None, *, shown: bool = False
    ) -> Admitted:
        """Decide on a request of a client with these rights; None is not known; raises Refused.

        ``shown`` says whether the client has sent a token, which explains a refusal.
        """
        if method == "OPTIONS" and self._cors is not None:
            return Admitted(_PREFLIGHT, known=not self.needs_token)
        route, names = self._router.find(method, path)
        check_grant(grant, route.scope, names[0] if names else None, shown=shown)
        if route.whole_store and route.scope and not (grant and grant.everywhere(route.scope)):
            raise Refused(403, "this concerns the whole store; send a token for all names (*)")
        if self._read_only and (route.scope or Scope.READ) > Scope.READ:
            raise Refused(403, "this server is read-only; use another one for changes")
        if grant is None:
            return Admitted(_Admission(route, names, _NOBODY), known=False)
        self._rates.take(grant)
        return Admitted(_Admission(route, names, grant), known=True)

    def handle(self, request: Request, answer: Answer) -> Callable[[], Any] | None:
        """Answer a request that was admitted, at once or later."""
        if request.action is _PREFLIGHT:
            answer(cast(Cors, self._cors).preflight(request.headers))
            return None
        request_id = self._id_of(request)
        finish = partial(self._finish, request, request_id, answer)
        try:
            self.guard(request.headers)
            call = self._call(request, request_id)
            work = self._work(call)
        except (Refused, HeadwaterError) as error:
            finish(None, error)
            return None
        if not asyncio.iscoroutine(work):
            # A future that many requests of this moment share the work for.
            future = asyncio.ensure_future(work)
            future.add_done_callback(partial(_shared_done, call, finish))
            return None
        task = asyncio.get_running_loop().create_task(self._run(call, work, finish))
        if request.caller is not None:
            call_for(task, (request.caller,))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, work, finish))
        if not call.waits:
            return None
        self._waiting.add(task, call.grant)
        return task.cancel

    def _work(self, call: ApiCall) -> Awaitable[Answered]:
        if call.route.scope is Scope.ADMIN:
            return _audited(call)
        return call.route.run(call)

    def _call(self, request: Request, request_id: str) -> ApiCall:
        route, names, grant = request.action
        query = _read_query(request.query, route.query)
        if request.body:
            _check_plain(request.headers)
        sent = media_type((request.headers or {}).get(b"content-type")) if request.body else None
        body: Any = None
        if route.body is not None and (sent is None or sent not in route.bodies):
            if sent not in (None, JSON):
                raise Refused(415, f"this takes {', '.join((JSON, *route.bodies))}, not {sent}")
            body = self._read_body(route, request.body)
        elif route.body is None and request.body:
            raise InvalidInput("this request takes no body; leave it out")
        accepted = _accepted(request, route)
        return ApiCall(
            self._served, route, grant, names, query, body, accepted, request, request_id
        )

    def _read_body(self, route: Route, body: bytes | bytearray) -> Any:
        try:
            # Without a body: the defaults of all fields.
            return self._decoders[route].decode(body or b"{}")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            wrong = body_fault(error, route.body)
            raise InvalidInput(f"the body is not what this request takes: {wrong}") from None

    async def _run(self, call: ApiCall, work: _Work, finish: Finish) -> None:
        """Answer within the task: a callback of it would wait for another round of the loop."""
        try:
            answered = _etagged(call, await work)
        except Exception as error:  # noqa: BLE001  whatever it is, the client waits for an answer
            finish(None, error)
        else:
            finish(answered, None)

    def _ended(self, work: _Work, finish: Finish, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        revoked = self._waiting.discard(task)
        if task.cancelled():
            # It may have been so before it began.
            work.close()
            finish(None, _revoked() if revoked else _stops())
        else:
            task.result()

    def _finish(
        self,
        request: Request,
        request_id: str,
        answer: Answer,
        answered: Answered | None,
        error: BaseException | None,
    ) -> None:
        if isinstance(error, HeadwaterError):
            answered = problem_of(error, request_id)
        elif error is not None:
            refused = error if isinstance(error, Refused) else own_fault(error)
            answered = problem_of_refusal(refused, request_id)
        elif isinstance(answered, Reply | StreamedReply):
            own = b"X-Request-ID: %b\r\n" % request_id.encode()
            answered = msgspec.structs.replace(answered, headers=answered.headers + own)
        else:
            own = b"X-Request-ID: %b\r\n" % request_id.encode()
            answered = Reply(request.action.route.status, _encode(answered), JSON, own)
        if self._cors is not None:
            answered = self._cors.allowed(request.headers, answered)
        answer(answered)

    def refuse(self, refused: Refused) -> Reply:
        """Return the reply to what is refused, which may not even be a request."""
        return problem_of_refusal(refused, self._new_id())

    def count(self, reply: Reply | StreamedReply) -> None:
        """Count a request that is answered."""
        self._served.metrics.count_request(reply.status)

    def _id_of(self, request: Request) -> str:
        given = (request.headers or {}).get(b"x-request-id")
        return given.decode() if given and _ID.fullmatch(given) else self._new_id()

    def _new_id(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"

    def drain(self) -> None:
        """End what waits for messages, so that its clients ask another server."""
        self._waiting.stop()

    async def close(self) -> None:
        """End the requests that are still under way, although a store does not answer them."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


_NOBODY: Final = Grant("nobody", {})


def _shared_done(call: ApiCall, finish: Finish, work: asyncio.Future[Answered]) -> None:
    """Answer a request whose work many requests share."""
    if work.cancelled():
        finish(None, _stops())
    elif (error := work.exception()) is not None:
        finish(None, error)
    else:
        finish(_etagged(call, work.result()), None)


def _stops() -> Refused:
    return Refused(503, "the server stops; retry with another connection")


def _revoked() -> Refused:
    return Refused(401, "this token was revoked meanwhile; send one that is in force")


def _etagged(call: ApiCall, answered: Answered) -> Answered:
    """Answer 304 to a client that has what is shown already."""
    if call.request.method not in ("GET", "HEAD") or isinstance(answered, Reply | StreamedReply):
        return answered
    body = _encode(answered)
    tag = f'"{blake2b(body, digest_size=12).hexdigest()}"'
    header = f"ETag: {tag}\r\n".encode()
    known = call.header(b"if-none-match")
    if known and (
        known == "*" or tag in [one.strip().removeprefix("W/") for one in known.split(",")]
    ):
        return Reply(304, b"", JSON, header)
    return Reply(200, body, JSON, header)


def _read_query(text: str, kind: type[msgspec.Struct]) -> msgspec.Struct:
    given: dict[str, str] = {}
    try:
        pairs = (
            []
            if not text
            else parse_qsl(text, keep_blank_values=True, strict_parsing=True, errors="strict")
        )
    except (ValueError, UnicodeDecodeError):
        raise InvalidInput("the query must consist of parameters: a=1&b=2") from None
    for name, value in pairs:
        if name in given:
            raise InvalidInput(f"the parameter {name!r} is given twice; give it once")
        given[name] = value
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        takes = ", ".join(kind.__struct_encode_fields__) if kind is not NoQuery else "none"
        raise InvalidInput(f"the query is wrong: {error}; the parameters are: {takes}") from None


def _check_plain(headers: dict[bytes, bytes] | None) -> None:
    """Refuse a body that is packed: nothing here unpacks what a stranger has sent."""
    packed = (headers or {}).get(b"content-encoding", b"identity").decode("latin-1")
    if packed.lower() != "identity":
        raise Refused(415, f"a body is not taken packed by {packed}; send it as it is")


def _accepted(request: Request, route: Route) -> str:
    """Return the first media type that the client accepts and the route has; raises Refused."""
    given = (request.headers or {}).get(b"accept")
    default = JSON if route.answer is not None else (*route.answers, JSON)[0]
    if given is None:
        return default
    for part in given.decode("latin-1").lower().split(","):
        wanted = part.partition(";")[0].strip()
        if wanted in _ANY or wanted == default or (wanted == "text/*" and default[:5] == "text/"):
            return default
        if wanted in route.answers:
            return wanted
    has = ", ".join(dict.fromkeys((default, *route.answers)))
    raise Refused(406, f"this is answered as {has}; accept one of them")


def _audited(call: ApiCall) -> Awaitable[Answered]:
    request, look = call.request, call.route.look
    facts = {
        "who": call.grant.holder,
        "request_id": call.id,
        "what": call.route.operation,
        "method": request.method,
        "path": request.path,
        "query": request.query,
    }

    async def seen() -> Any:
        return None if look is None else await look(call)

    def shown(answered: Answered) -> Any:
        return None if isinstance(answered, Reply | StreamedReply) else answered

    tag = call.names[0] if call.names else ""
    return audited(call.hw, tag, facts, call.body, seen, partial(call.route.run, call), shown)
