"""Routes: what may be asked of the API, how it is refused, and the OpenAPI document of both.

Every route is one row of a table. Its handler is found by it, the OpenAPI document and the
reference page are made of it, and who may ask is decided by it before a body is read.
"""

from __future__ import annotations

import http
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from headwater import errors
from headwater.errors import HeadwaterError
from headwater.kernel.declaring import Scope
from headwater.kernel.packaging import __version__
from headwater.serve.http.messages import RETRY_AFTER, Refused, Reply, StreamedReply, name_of_part

if TYPE_CHECKING:
    from headwater.serve.api.calls import ApiCall


JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"
EVENTS: Final = "text/event-stream"
TEXT: Final = "text/plain"

Answered: TypeAlias = "msgspec.Struct | Reply | StreamedReply"
Run: TypeAlias = "Callable[[ApiCall], Awaitable[Answered]]"
# Shows an object before and after an administrator has changed it; None for what is not there.
Look: TypeAlias = "Callable[[ApiCall], Awaitable[msgspec.Struct | None]]"


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """No parameters."""


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One thing that may be asked.

    The first parameter of ``path`` is the name that a token's patterns are matched with; a route
    without one is about what the token may read, or, with ``whole_store``, about everything.
    ``body`` and ``answer`` are types of JSON; ``bodies`` and ``answers`` are further media types.
    ``look`` is what the audit shows.
    """

    method: str
    path: str
    run: Run
    scope: Scope | None
    query: type[msgspec.Struct] = NoQuery
    body: Any = None
    bodies: tuple[str, ...] = ()
    answer: Any = None
    answers: tuple[str, ...] = ()
    status: int = 200
    whole_store: bool = False
    look: Look | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters of the path, in order."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    @property
    def summary(self) -> str:
        """What the route does, in one sentence."""
        return cleandoc(self.run.__doc__ or "").partition("\n")[0]

    @property
    def description(self) -> str:
        """What the route does, in full."""
        return cleandoc(self.run.__doc__ or "")

    @property
    def operation(self) -> str:
        """The name of the operation, which no other route has."""
        return self.run.__name__


class Router:
    """Finds the route of a request."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._tree: dict[str, Any] = {}
        for route in self.routes:
            place = self._tree
            for part in route.path.split("/")[1:]:
                place = place.setdefault("{}" if part.startswith("{") else part, {})
            # No part of a path has a space.
            place[f" {route.method}"] = route

    def find(self, method: str, path: str) -> tuple[Route, tuple[str, ...]]:
        """Return the route of a request and the parameters of its path; raises Refused."""
        place = self._tree
        found = []
        for part in path.split("/")[1:]:
            inner = place.get(part)
            if inner is None or part == "{}":
                inner = place.get("{}")
                if inner is None or not part:
                    raise Refused(404, "there is nothing under this path; see /v1/openapi.json")
                found.append(name_of_part(part) if "%" in part or part[0] == "{" else part)
            place = inner
        route = place.get(f" {'GET' if method == 'HEAD' else method}")
        if route is None:
            methods = {key[1:] for key in place if key.startswith(" ")}
            allow = ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))
            if not allow:
                raise Refused(404, "there is nothing under this path; see /v1/openapi.json")
            raise Refused(405, f"this path takes {allow}", allow)
        return route, tuple(found)


PROBLEM: Final = "application/problem+json"
TYPE: Final = "urn:headwater:error:"

# The nearest class of an error decides.
STATUSES: Final[dict[type[HeadwaterError], int]] = {
    errors.InvalidInput: 400,
    errors.Undecodable: 400,
    errors.ExtraMissing: 501,
    errors.FormatTooNew: 500,
    errors.StoreError: 503,
    errors.AccessDenied: 502,
    errors.StoreTooOld: 502,
    errors.OutcomeUnknown: 504,
    errors.UnknownStream: 404,
    errors.UnknownTopic: 404,
    errors.UnknownGroup: 404,
    errors.UnknownReader: 404,
    errors.UnknownIck: 404,
    errors.UnknownQueue: 404,
    errors.LogError: 500,
    errors.StaleSequence: 409,
    errors.ReusedSequence: 409,
    errors.PartitionMismatch: 409,
    errors.IckError: 409,
    errors.QueueError: 409,
    errors.TimelineError: 503,
    errors.QuorumFailed: 504,
    errors.ReshardRefused: 409,
    errors.OutboxError: 409,
    errors.DatabaseUnreachable: 503,
    errors.DatabaseRefused: 502,
    errors.UnknownConsumer: 404,
    errors.UnknownTimedJob: 404,
    HeadwaterError: 500,
}


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Why a request was not done; ``detail`` ends with the cure, ``facts`` are the error's own."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str
    facts: dict[str, Any] = {}


def status_of(error: HeadwaterError) -> int:
    """Return the status by which an error is answered."""
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def problem_of(error: HeadwaterError, request_id: str) -> Reply:
    """Return the reply to a request that the library refused, or that failed."""
    status = status_of(error)
    name = type(error).__name__
    facts = {
        fact: value
        for fact, value in vars(error).items()
        if not fact.startswith("_") and isinstance(value, str | int | float | None)
    }
    problem = Problem(
        type=TYPE + name,
        title=name,
        status=status,
        detail=str(error),
        request_id=request_id,
        facts=facts,
    )
    return _reply(problem, RETRY_AFTER if status == 503 else b"")


def problem_of_refusal(refused: Refused, request_id: str) -> Reply:
    """Return the reply to a request that HTTP itself refuses."""
    title = http.HTTPStatus(refused.status).phrase
    problem = Problem(
        type="about:blank",
        title=title,
        status=refused.status,
        detail=str(refused),
        request_id=request_id,
    )
    return _reply(problem, refused.headers, close=refused.close)


def _reply(problem: Problem, headers: bytes = b"", *, close: bool = False) -> Reply:
    headers += b"X-Request-ID: %b\r\n" % problem.request_id.encode()
    return Reply(problem.status, msgspec.json.encode(problem), PROBLEM, headers, close)


_REF: Final = "#/components/schemas/{name}"
_TEXT: Final = {"type": "string"}
# By which statuses a route may be refused, beside those of its own.
_REFUSALS: Final = sorted({*STATUSES.values(), 401, 403, 405, 406, 408, 413, 415, 429, 431})


def document(routes: Iterable[Route]) -> bytes:
    """Return the document, as JSON."""
    listed = [route for route in routes if route.path.startswith("/")]
    kinds: list[Any] = [Problem]
    for route in listed:
        kinds += [kind for kind in (route.query, route.body, route.answer) if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    by_kind = dict(zip(map(_key, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in listed:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(
            route, by_kind, components
        )
    made = _without_tuples(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Headwater",
                "version": __version__,
                "description": "Streams, groups, queues, dirty lists, timelines and outbox.",
            },
            "security": [{"token": []}],
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }
    )
    return msgspec.json.encode(made)


def _without_tuples(node: Any) -> Any:
    """Return a document whose tuples are lists of a length: generators of clients refuse others."""
    if isinstance(node, list):
        return [_without_tuples(one) for one in node]
    if not isinstance(node, dict):
        return node
    found = {name: _without_tuples(one) for name, one in node.items()}
    places = found.pop("prefixItems", None)
    if places is not None:
        kinds = [kind for at, kind in enumerate(places) if kind not in places[:at]]
        found["items"] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    return found


def _key(kind: Any) -> Any:
    return kind if isinstance(kind, type) else repr(kind)


def _operation(route: Route, by_kind: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    scope = "anybody" if route.scope is None else f"a token with scope {route.scope.name.lower()}"
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "description": f"{route.description}\n\nFor {scope}.",
        "parameters": _parameters(route, components),
        "responses": _responses(route, by_kind),
    }
    if route.scope is None:
        operation["security"] = []
    if route.body is not None:
        content: dict[str, Any] = {JSON: {"schema": by_kind[_key(route.body)]}}
        content |= {media: {"schema": _media_schema(media)} for media in route.bodies}
        operation["requestBody"] = {"required": _is_needed(route.body), "content": content}
    return operation


def _is_needed(body: Any) -> bool:
    """Return whether a body may not be left out: it has a field without a default."""
    if not (isinstance(body, type) and issubclass(body, msgspec.Struct)):
        return True
    return any(field.required for field in msgspec.structs.fields(body))


def _parameters(route: Route, components: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1},
        }
        for name in route.parameters
    ]
    if route.query is NoQuery:
        return found
    schema = components[route.query.__name__]
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        found.append({"name": name, "in": "query", "required": name in required, "schema": field})
    return found


def _responses(route: Route, by_kind: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if route.answer is not None:
        content[JSON] = {"schema": by_kind[_key(route.answer)]}
    content |= {media: {"schema": _media_schema(media)} for media in route.answers}
    problem = {PROBLEM: {"schema": by_kind[Problem]}}
    found: dict[str, Any] = {
        str(route.status): {"description": route.summary, "content": content},
    }
    if route.method == "GET":
        found["304"] = {"description": "What the client has is up to date."}
    for status in _REFUSALS:
        found[str(status)] = {
            "description": http.HTTPStatus(status).phrase,
            "content": problem,
        }
    return found


def _media_schema(media: str) -> dict[str, Any]:
    if media == ARROW:
        return {"type": "string", "format": "binary"}
    if media == EVENTS:
        return {"type": "string", "description": "Server-sent events."}
    return _TEXT
