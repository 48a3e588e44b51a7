"""The reference page of the HTTP API, made of its table of routes.

``python -m tests.support.http_reference`` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from headwater.serve.api.routes import STATUSES, NoQuery, Problem, Route
from headwater.serve.api.table import ROUTES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "http.md"
MARK = "<!-- made of the table of routes by tests/support/http_reference.py -->"


def generated() -> str:
    """Return the part of the page that is made of the table."""
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    kinds: list[Any] = [Problem]
    for route in ROUTES:
        kinds += [kind for kind in (route.query, route.body, route.answer) if kind is not None]
    _, components = msgspec.json.schema_components(kinds)
    yield "## Requests"
    yield ""
    yield "| request | scope | |"
    yield "|---|---|---|"
    for route in ROUTES:
        yield f"| `{route.method} {route.path}` | {_scope(route)} | {route.summary} |"
    for route in ROUTES:
        yield ""
        yield f"### {route.method} {route.path}"
        yield ""
        yield route.description
        yield from _parts(route, components)
    yield ""
    yield "## Errors by status"
    yield ""
    yield "| error | status |"
    yield "|---|---|"
    for error, status in sorted(STATUSES.items(), key=lambda row: (row[1], row[0].__name__)):
        yield f"| `{error.__name__}` | {status} |"


def _scope(route: Route) -> str:
    if route.scope is None:
        return "none"
    return route.scope.name.lower() + (" on `*`" if route.whole_store else "")


def _parts(route: Route, components: dict[str, Any]) -> Iterator[str]:
    if route.query is not NoQuery:
        yield ""
        yield "Parameters:"
        yield ""
        yield from _fields(components[route.query.__name__])
    if route.body is not None:
        forms = "".join(f", or `{media}`" for media in route.bodies)
        yield ""
        yield f"Body: JSON{forms}."
        yield ""
        names = _structs(route.body)
        for name in names:
            yield from _fields(components[name])
    answers = [f"{route.status} with `{_shown(route.answer)}`"] if route.answer else []
    answers += [f"`{media}`" for media in route.answers]
    yield ""
    yield f"Answer: {', or '.join(answers)}."


def _structs(kind: Any) -> list[str]:
    """Return the names of the Structs in a type, each once."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [kind.__name__]
    found: list[str] = []
    for inner in getattr(kind, "__args__", ()):
        found += [name for name in _structs(inner) if name not in found]
    return found


def _shown(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else "object"


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        told = field.get("description") or next(
            (one["description"] for one in field.get("anyOf", ()) if "description" in one), ""
        )
        default = "" if name in required else f"; default `{_default(field)}`"
        yield f"- `{name}`: {_type(field)}{default}{'. ' + told if told else ''}"


def _default(field: dict[str, Any]) -> str:
    return msgspec.json.encode(field.get("default")).decode()


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        return f"`{field['$ref'].rpartition('/')[2]}`"
    if "anyOf" in field:
        return " or ".join(_type(one) for one in field["anyOf"])
    if "enum" in field:
        return " or ".join(f"`{word}`" for word in field["enum"])
    kind = field.get("type", "any JSON")
    bounds = [field.get("minimum"), field.get("maximum")]
    if bounds != [None, None]:
        low, high = ("" if bound is None else f"{bound:,}" for bound in bounds)
        return f"{kind} from {low} to {high}"
    if kind == "array":
        return f"array of {_type(field.get('items', {}))}"
    return str(kind)


if __name__ == "__main__":
    head, _, _ = PAGE.read_text().partition(MARK)
    PAGE.write_text(f"{head}{MARK}\n\n{generated()}")
