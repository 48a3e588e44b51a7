"""What both stores report of a request: its name, its object, how much it moved, how it ended."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, TypeAlias

from headwater.errors import OutcomeUnknown
from headwater.instrument import Instrument, Observation
from headwater.store.call import Call, Look, Many, Wait
from headwater.store.faults import Refusal
from headwater.store.object_names import object_of

_log = logging.getLogger("headwater.instrument")

# What is reported; asking for the time is not an operation.
Observed: TypeAlias = "Call | Wait | Look | Many"


class RequestObservation(Observation):
    """A request in progress."""

    __slots__ = ("_request", "retried")

    def __init__(self, found: Instrument, request: Observed, where: str) -> None:
        self._request = request
        self.retried = False
        super().__init__(found, *_name_and_object(request, where))

    def succeed(self, reply: Any) -> None:
        """Report that the request was done, and how much it moved.

        A Look without a reply did not work; the operation asks again in another way.
        """
        if reply is None and isinstance(self._request, Look):
            self.end("retried")
            return
        try:
            if isinstance(self._request, Many):
                for call, each in zip(self._request.calls, reply, strict=True):
                    self._add(call, each)
            else:
                self._add(self._request, reply)
        except Exception:  # noqa: BLE001  what is done stays done
            _log.exception("the reply to %s could not be counted", self.name)
        self.end("retried" if self.retried else "ok")

    def fail(self, error: BaseException) -> None:
        """Report that the request was not done, or that its outcome is unknown."""
        if isinstance(error, Refusal):
            self.end("refused", error)
        else:
            self.end("unknown" if isinstance(error, OutcomeUnknown) else "failed", error)

    def _add(self, request: Call | Wait | Look, reply: Any) -> None:
        if isinstance(reply, Refusal):
            return
        count = request.messages
        self.messages += count if isinstance(count, int) else count(request, reply)
        self.bytes += size_of(reply)
        if isinstance(request, Call):
            self.bytes += size_of(request.args)


def size_of(value: Any) -> int:
    """Return the bytes of the texts in arguments or in a reply; numbers count for nothing."""
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, str):
        return len(value.encode())
    size = 0
    if isinstance(value, list | tuple):
        for one in value:
            # Most are bytes, numbers and empty words: for these no function is called.
            kind = type(one)
            if kind is bytes:
                size += len(one)
            elif kind is not int and one:
                size += size_of(one)
    return size


@cache
def name_of(function: str) -> str:
    """Return the name of a server function as an operation: hw_stream_write is stream.write."""
    kind, _, verb = function.removeprefix("hw_").partition("_")
    return f"{kind}.{verb}" if verb else f"store.{kind}"


def _name_and_object(request: Observed, where: str) -> tuple[str, str]:
    if isinstance(request, Many):
        return "store.many", where
    if isinstance(request, Call):
        name = name_of(request.function)
        owner = object_of(request.key)[1] or where
        if name.startswith("group."):
            owner = f"{owner}/{_text(request.args[0])}"
        return name, owner
    kind, owner = object_of(request.key)
    return f"{kind}.{'wait' if isinstance(request, Wait) else 'look'}", owner or where


def _text(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)
