"""A request of the console as its page sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.log.keys import MAX_OFFSET
from headwater.serve.api.calls import Served
from headwater.serve.http.messages import Refused, Request, StreamedReply
from headwater.serve.tokens import Grant

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater

Context: TypeAlias = dict[str, Any]
Show: TypeAlias = "Callable[[PageCall], Awaitable[Context | StreamedReply]]"


class ConsolePage(NamedTuple):
    """One page: where it is, what it shows, and under which word of the navigation.

    A page without a template is answered as JSON, or as what scripts follow. One about the
    ``whole`` store is for clients that may read all of it; others are about the object that is the
    first name of their path, and for clients that may read that.
    """

    path: str
    show: Show
    template: str = ""
    place: str = ""
    whole: bool = False

    async def shown(self, call: PageCall) -> Context | StreamedReply:
        """Return what the template shows, or the answer; raises Refused without the right."""
        if self.whole:
            call.check_everywhere()
        elif call.names:
            call.check(call.name)
        return await self.show(call)


def page(
    path: str, template: str = "", place: str = "", *, whole: bool = False
) -> Callable[[Show], ConsolePage]:
    """Declare a function as what a page shows."""
    return lambda show: ConsolePage(path, show, template, place, whole)


@dataclass(frozen=True, slots=True)
class PageCall:
    """A request for a page; ``names`` are those of its path, ``query`` its parameters."""

    served: Served
    grant: Grant
    names: tuple[str, ...]
    query: dict[str, str]
    request: Request
    read_only: bool

    @property
    def hw(self) -> AsyncHeadwater:
        """The client of the store."""
        return self.served.hw

    @property
    def name(self) -> str:
        """The name of the object that the page is about."""
        return self.names[0]

    @property
    def address(self) -> str:
        """The address under which the browser has asked for the page."""
        headers = self.request.headers or {}
        scheme = "https" if headers.get(b"referer", b"").startswith(b"https:") else "http"
        host = headers.get(b"host", b"").decode("latin-1") or "127.0.0.1:6300"
        return f"{scheme}://{host}{self.request.root}"

    def check(self, name: str) -> None:
        """Check that the client may see an object; raises Refused, 403."""
        if not self.grant.allows(Scope.READ, name):
            raise Refused(403, f"this token does not allow to read {name!r}; sign in with another")

    def check_everywhere(self) -> None:
        """Check that the client may see all of the store; raises Refused, 403."""
        if not self.grant.everywhere(Scope.READ):
            raise Refused(
                403, "this concerns the whole store; sign in with a token for all names (*)"
            )

    def may(self, needed: Scope, name: str) -> bool:
        """Return whether the client may do what needs a scope to an object."""
        return not self.read_only and self.grant.allows(needed, name)

    def visible(self, names: list[str]) -> list[str]:
        """Return the names that the client may read, and that match what is searched for."""
        wanted = self.query.get("q", "").lower()
        return [
            name
            for name in names
            if self.grant.allows(Scope.READ, name) and (not wanted or wanted in name.lower())
        ]

    def number(self, name: str, default: int | None = None) -> int | None:
        """Return a parameter that is a number; raises InvalidInput."""
        given = self.query.get(name, "").replace(",", "").strip()
        if not given:
            return default
        try:
            number = int(given)
            if abs(number) > MAX_OFFSET:
                raise ValueError
            return number
        except ValueError:
            raise InvalidInput(f"{name} is a number, not {given!r}") from None

    def part(self, names: list[str], size: int = 100) -> tuple[list[str], Context]:
        """Return the names of one page of a list, and what its template shows of the others."""
        start = max(self.number("from", 0) or 0, 0)
        shown = names[start : start + size]
        return shown, {
            "total": len(names),
            "start": start,
            "shown": len(shown),
            "before": max(start - size, 0) if start else None,
            "after": start + size if start + size < len(names) else None,
            "q": self.query.get("q", ""),
        }
