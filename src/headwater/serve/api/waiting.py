"""Requests that wait for messages: they end when the server stops, or their token is revoked."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from headwater.serve.tokens import Grant, Tokens

# How long a request may go on waiting after its token was revoked.
_LOOK_S: Final = 0.4


class WaitingCalls:
    """The requests of a process that wait for messages, each with the grant of its client."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._grants: dict[asyncio.Task[Any], Grant] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, task: asyncio.Task[Any], grant: Grant) -> None:
        """Watch a request until ``discard``."""
        self._grants[task] = grant
        if self._timer is None and self._tokens.required:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def discard(self, task: asyncio.Task[Any]) -> bool:
        """Forget a request, if it is one of these; returns whether its token was revoked."""
        grant = self._grants.pop(task, None)
        return grant is not None and not self._tokens.still(grant)

    def stop(self) -> None:
        """End all of them, so that their clients ask another server."""
        for task in list(self._grants):
            task.cancel()

    def _look(self) -> None:
        self._timer = None
        for task, grant in list(self._grants.items()):
            if not self._tokens.still(grant):
                task.cancel()
        if self._grants:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)
