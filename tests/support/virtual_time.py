"""Operations side by side in a time of their own: a third driver, beside the two stores.

A clock moves only when a test moves it, and names are counted instead of drawn. Calls go to a real
server; what would block there is looked at without blocking, and waited for in virtual time. So a
read that blocks for hours ends at once, when the test says that the hours are over. Only what the
server itself counts, as the time until a redelivery, is real.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from headwater.errors import StoreError
from headwater.store.call import Clock, Operation, Request, Token, Wait
from headwater.store.faults import Refusal

Ask = Callable[[Request], Any]


class Running:
    """An operation under way; ``blocked`` is what it waits for."""

    def __init__(self, operation: Operation[Any]) -> None:
        self.operation = operation
        self.requests: list[Request] = []
        self.blocked: Wait | None = None
        self.until_ms = 0.0
        self.done = False
        self._result: Any = None
        self._error: Exception | None = None

    def result(self) -> Any:
        """Return what it returned; raises what it raised."""
        assert self.done, "it still runs"
        if self._error is not None:
            raise self._error
        return self._result

    def resume(self, reply: Any) -> Request | None:
        """Give it a reply or an error; returns what it asks for next, None at its end."""
        self.blocked = None
        try:
            if isinstance(reply, (Refusal, StoreError)):
                request = self.operation.throw(reply)
            else:
                request = self.operation.send(reply)
        except StopIteration as end:
            self.done, self._result = True, end.value
            return None
        except Exception as error:  # noqa: BLE001  raised by result
            self.done, self._error = True, error
            return None
        self.requests.append(request)
        return request


class VirtualTime:
    """Runs operations; ``ask`` is a store's, and is never given a request that blocks."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._tokens = count(1)
        self._running: list[Running] = []
        self.now_ms = 0.0

    def start(self, operation: Operation[Any]) -> Running:
        """Begin an operation, and go on until it is over or blocked, and so is everybody."""
        running = Running(operation)
        self._running.append(running)
        self._go_on(running, None)
        self._wake()
        return running

    def advance(self, ms: float) -> None:
        """Move the clock; who has waited for long enough goes on, in the order of their times."""
        target = self.now_ms + ms
        while due := min(self._waiting(), key=lambda one: one.until_ms, default=None):
            if due.until_ms > target:
                break
            self.now_ms = max(self.now_ms, due.until_ms)
            self._go_on(due, None)
            self._wake()
        self.now_ms = target

    def _waiting(self) -> list[Running]:
        return [running for running in self._running if running.blocked is not None]

    def _wake(self) -> None:
        """Let those go on for whom something has come, until nothing more comes."""
        while any(self._look_again(running) for running in self._waiting()):
            pass

    def _look_again(self, running: Running) -> bool:
        assert running.blocked is not None
        reply = self._ask(without_blocking(running.blocked))
        if reply is None:
            return False
        self._go_on(running, _as_blocking(running.blocked, reply))
        return True

    def _go_on(self, running: Running, reply: Any) -> None:
        while (request := running.resume(reply)) is not None:
            if isinstance(request, Wait):
                found = self._ask(without_blocking(request))
                if found is None:
                    running.blocked = request
                    running.until_ms = self.now_ms + request.timeout_ms
                    return
                reply = _as_blocking(request, found)
            else:
                reply = self._answer(request)

    def _answer(self, request: Request) -> Any:
        if isinstance(request, Clock):
            return self.now_ms
        if isinstance(request, Token):
            return f"{next(self._tokens):08x}"
        try:
            return self._ask(request)
        except (Refusal, StoreError) as error:
            return error


def without_blocking(request: Wait) -> Wait:
    """Return a request that looks at the same, and returns at once."""
    verb, *words = request.command
    if verb == "BLPOP":
        key, _ = words
        return Wait(request.key, ("LPOP", key), 0)
    assert verb == "XREAD", request.command
    place = words.index("BLOCK")
    return Wait(request.key, (verb, *words[:place], *words[place + 2 :]), 0)


def _as_blocking(request: Wait, reply: Any) -> Any:
    """Return the reply that the blocking command would have had."""
    return [request.command[1], reply] if request.command[0] == "BLPOP" else reply
