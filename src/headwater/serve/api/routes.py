"""Routes: what may be asked of the API, with the types of what is sent and answered.

Every route is one row of a table. Its handler is found by it, the OpenAPI document and the
reference page are made of it, and who may ask is decided by it before a body is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from headwater.kernel.declaring import Scope
from headwater.serve.http.messages import Refused, Reply, StreamedReply, name_of_part

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
