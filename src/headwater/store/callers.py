"""Who waits for calls of a store: a call that was not sent yet is given up when its caller is gone.

A server retries calls for its clients while its store is down. A client that hung up meanwhile
retries by itself, so that its call would happen twice. Callers are those of one task: the tasks
that it starts may serve others as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from headwater.errors import StoreError

# A call that is held up for less time is made, although its caller seems to be gone.
BRIEF_S: Final = 1.0


class Caller:
    """Somebody who waits for the replies of calls, until ``gone``."""

    __slots__ = ("gone",)

    def __init__(self) -> None:
        self.gone = False


class CallerGone(StoreError):
    """A call was given up before it was sent, as its caller is gone."""

    def __init__(self) -> None:
        super().__init__("the client has gone, and nothing was sent to the store; ask again")


_callers: WeakKeyDictionary[asyncio.Task[Any], Sequence[Caller]] = WeakKeyDictionary()


def call_for(task: asyncio.Task[Any], callers: Sequence[Caller]) -> None:
    """Note that the calls of a task are for these callers, and for nobody without any of them."""
    _callers[task] = callers


def callers() -> Sequence[Caller]:
    """Return for whom the calls of the present task are; nothing where that was not said."""
    if not _callers:
        return ()
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a call of another thread, without an event loop
        return ()
    return () if task is None else _callers.get(task, ())


def is_given_up() -> bool:
    """Return whether a caller of the present task is gone."""
    return any(caller.gone for caller in callers())
