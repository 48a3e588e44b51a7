"""The OpenAPI 3.1 document of the API, made of its table of routes."""

from __future__ import annotations

import http
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from headwater.kernel.packaging import __version__
from headwater.serve.api.problems import PROBLEM, Problem
from headwater.serve.api.routes import ARROW, EVENTS, JSON, NoQuery, Route

_REF: Final = "#/components/schemas/{name}"
_TEXT: Final = {"type": "string"}
# By which statuses a route may be refused, beside those of its own.
_REFUSALS: Final = (
    400,
    401,
    403,
    404,
    405,
    406,
    408,
    409,
    413,
    415,
    429,
    431,
    500,
    501,
    502,
    503,
    504,
)


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
