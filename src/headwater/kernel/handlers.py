"""Whether a handler takes what it is given, and whether it is async.

Both are checked before it is given a message; where that cannot be known, by what it returned.

A handler of the wrong kind does harm without failing: a sync worker would treat a coroutine that
never ran as success, and an async worker would run a plain function again and again.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from headwater.errors import InvalidInput


def is_async(handler: Any) -> bool:
    """Return whether it is an ``async def``, or an object that is one when it is called."""
    handler = _beneath(handler)
    calls = getattr(type(handler), "__call__", None)  # noqa: B004  not whether, but what
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(calls)


def check_takes(handler: Any, *what: str) -> None:
    """Refuse what cannot be called with this many arguments; ``what`` names them."""
    if not callable(handler):
        raise InvalidInput(f"the handler must be a function, not {handler!r}")
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return  # some functions that are written in C have none
    try:
        signature.bind(*what)
    except TypeError as error:
        name = getattr(_beneath(handler), "__qualname__", type(handler).__name__)
        raise InvalidInput(
            f"the handler {name}{signature} must take {len(what)} arguments, {', '.join(what)}: "
            f"{error}"
            if len(what) > 1
            else f"the handler {name}{signature} must take one argument, the {what[0]}: {error}"
        ) from None


def check_sync(handler: Any) -> None:
    """Refuse an ``async def``; what a lambda or an object returns is known when it is called."""
    if is_async(handler):
        raise InvalidInput("the handler must not be async here; use headwater.aio")


def check_async(handler: Any) -> None:
    """Refuse a plain ``def``; what a lambda or an object returns is known when it is called."""
    handler = _beneath(handler)
    if not callable(handler):
        raise InvalidInput(f"the handler must be an async function, not {handler!r}")
    written = inspect.isfunction(handler) or inspect.ismethod(handler)
    if written and handler.__name__ != "<lambda>" and not is_async(inspect.unwrap(handler)):
        raise InvalidInput(
            f"the handler {handler.__qualname__} must be async here; write async def, or use the "
            "sync client"
        )


def not_awaitable(result: object) -> InvalidInput:
    """Return the error for a handler that returned nothing to await."""
    return InvalidInput(
        f"the handler returned {type(result).__name__}, which cannot be awaited; write async def, "
        "or use the sync client"
    )


def check_done(result: object) -> None:
    """Refuse an awaitable as the result of a sync handler: nobody would await it."""
    if not inspect.isawaitable(result):
        return
    if inspect.iscoroutine(result):
        result.close()
    raise InvalidInput(
        f"the handler returned a {type(result).__name__}, which nobody awaits here; write def, or "
        "use headwater.aio"
    )


def _beneath(handler: Any) -> Any:
    while isinstance(handler, partial):
        handler = handler.func
    return handler
