"""Operations driven by hand: stopped between any two calls, or taking turns with each other."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from headwater.errors import StoreError
from headwater.log.handles import StreamHandle
from headwater.store.call import Clock, Operation, Token, YieldTurn
from headwater.store.faults import Refusal
from headwater.store.store import Store

Make: TypeAlias = Callable[[], Operation[Any]]
_MOST_CALLS = 60


def handle_of(name: str) -> StreamHandle:
    """Return the handle of a stream as a client has it that has not used the stream yet."""
    return StreamHandle(name, set())


class Stepper:
    """One operation of one client, which does its next call when it is told to."""

    def __init__(self, store: Store, operation: Operation[Any]) -> None:
        self._store = store
        self._operation = operation
        self._reply: Any = None
        self.calls = 0
        self.done = False
        self.result: Any = None

    def step(self) -> bool:
        """Do one call and think about its reply; returns whether the operation is over.

        To ask for the time or for chance is no call: nothing is sent.
        """
        try:
            request = self._operation.send(self._reply)
            while isinstance(request, (Clock, Token, YieldTurn)):
                request = self._operation.send(self._store.ask(request))
        except StopIteration as end:
            self.done, self.result = True, end.value
            return True
        self.calls += 1
        try:
            self._reply = self._store.ask(request)
        except (Refusal, StoreError) as error:
            # Refused: let it think about that at once, and remember what it asks for next.
            self._operation = _resume(self._operation, error)
            self._reply = None
        return False

    def run(self) -> Any:
        """Go on to the end."""
        while not self.step():
            pass
        return self.result


def _resume(operation: Operation[Any], error: Exception) -> Operation[Any]:
    """Return an operation that begins by hearing of an error."""
    try:
        request = operation.throw(error)
        while True:
            try:
                reply = yield request
            except (Refusal, StoreError) as again:
                request = operation.throw(again)
            else:
                request = operation.send(reply)
    except StopIteration as end:
        return end.value


def abandon_after(store: Store, operation: Operation[Any], calls: int) -> bool:
    """Do so many calls of an operation, then drop it as a crash would; returns whether it was over.

    The last call happens, but nobody thinks about its reply.
    """
    stepper = Stepper(store, operation)
    while stepper.calls < calls:
        if stepper.step():
            return True
    operation.close()
    return False


def interrupt_everywhere(store: Store, prepare: Callable[[int], Make]) -> Iterator[Make]:
    """Prepare a case and stop its operation after 0, 1, 2, ... calls; yields what to finish."""
    for calls in range(_MOST_CALLS):
        make = prepare(calls)
        over = abandon_after(store, make(), calls)
        yield make
        if over:
            assert calls > 2, "there were places to stop at"
            return
    raise AssertionError(f"the operation takes more than {_MOST_CALLS} calls")


def take_turns(steppers: Iterable[Stepper], chance: random.Random) -> None:
    """Let operations do their calls one by one, in an order that chance decides, to the end."""
    going = list(steppers)
    while going:
        stepper = chance.choice(going)
        if stepper.step():
            going.remove(stepper)
