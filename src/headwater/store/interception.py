"""Interception of the calls of a store: the seam by which tests make them fail.

A program may install, for the address of a store, an interceptor that decides what happens to each
command. It is looked up once, when a client connects: a client of any other store uses its
connections directly, at no cost. Only calls of this process are intercepted, and none of those that
share a pipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol


class Interference(NamedTuple):
    """What happens to one command: it waits; it is not sent; it is carried out, but not answered.

    An error of redis-py is one of the connection, from which the store recovers as it always does.
    Any other error is raised to the caller unchanged.
    """

    delay_s: float = 0
    before: Exception | None = None
    after: Exception | None = None


class Interceptor(Protocol):
    """Decides what happens to commands; it is called from any thread."""

    def meet(self, command: tuple[Any, ...]) -> Interference | None:
        """Return what happens to a command; None lets it pass."""


_interceptors: dict[str, Interceptor] = {}


@contextmanager
def intercepted(safe: str, interceptor: Interceptor) -> Iterator[None]:
    """Intercept the calls of clients that connect meanwhile to the store of that safe name."""
    _interceptors[safe] = interceptor
    try:
        yield
    finally:
        del _interceptors[safe]


def interceptor_of(safe: str) -> Interceptor | None:
    """Return the interceptor of the store of that safe name; usually None."""
    return _interceptors.get(safe)
