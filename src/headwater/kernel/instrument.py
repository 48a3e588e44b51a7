"""Instrumentation: the one interface through which metrics and traces get every operation.

Stores, workers, streamers, consumers and farms report what they do to the installed ``Instrument``.
None is installed by default; then an operation costs one call of ``observe``, which returns None.

    class Slow:
        def begin(self, name, object): ...
        def end(self, token, event): print(event) if event.seconds > 1 else None
        def count(self, name, object, n=1): ...

    with installed(Slow()):
        ...

An operation is named by data type and verb ("stream.write", "queue.pop", "streamer.batch"), its
object by its own name ("rides", of a group "rides/totals"). Where that would be data, as the key of
a timeline is, the object is the address of the store, without its password. Instruments never see a
tag, a value, an offset or a member.

Who reports an operation:

    observation = observe("streamer.batch", name)
    try:
        ...
    except BaseException as error:
        if observation is not None:
            observation.end("retried", error)
        raise
    if observation is not None:
        observation.messages = rows
        observation.end()

``begin`` and ``end`` are called in the thread or task that does the work, around it: an instrument
may make a span current between them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

# refused: the server or a rule said no, nothing changed; unknown: sent, and no answer came;
# retried: the first attempt failed, and another one has done it or will; failed: any other error.
Outcome: TypeAlias = Literal["ok", "refused", "unknown", "retried", "failed"]


class Event(NamedTuple):
    """One operation that is over; ``error`` is the name of the error's class, '' without one.

    ``messages`` are those that it moved, ``bytes`` what was sent and received for it.
    """

    name: str
    object: str
    outcome: Outcome
    seconds: float
    messages: int = 0
    bytes: int = 0
    error: str = ""


class Instrument(Protocol):
    """Receives reports. Its methods are called often, from any thread, and must not block."""

    def begin(self, name: str, object: str) -> Any:
        """Note that an operation begins; ``end`` is given what this returns."""

    def end(self, token: Any, event: Event) -> None:
        """Note that an operation is over."""

    def count(self, name: str, object: str, n: int = 1) -> None:
        """Count something that takes no time of its own: a retry, a repair, a redelivery."""


_log = logging.getLogger("headwater.instrument")
_installed: Instrument | None = None
# What install() was given, and the instruments beside it; _installed reports to all of them.
_own: Instrument | None = None
_beside: tuple[Instrument, ...] = ()
_changing = threading.Lock()


def current() -> Instrument | None:
    """Return the installed instrument, or None."""
    return _installed


def install(instrument: Instrument | None) -> None:
    """Report all that happens in this process from now on to an instrument, or to nobody.

    The instruments of ``also_installed`` stay.
    """
    with _changing:
        _change(instrument, _beside)


def _change(own: Instrument | None, beside: tuple[Instrument, ...]) -> None:
    global _installed, _own, _beside  # noqa: PLW0603  one per process, as the clock is
    _own, _beside = own, beside
    together = beside if own is None else (own, *beside)
    _installed = _Together(together) if len(together) > 1 else next(iter(together), None)


@contextmanager
def installed(instrument: Instrument) -> Iterator[None]:
    """Report to an instrument for a while; the one before it comes back afterwards."""
    before = _own
    install(instrument)
    try:
        yield
    finally:
        install(before)


@contextmanager
def also_installed(instrument: Instrument) -> Iterator[None]:
    """Report to an instrument for a while, beside the others that are installed.

    Those who use this may begin and end in any order, as servers in one process do.
    """
    with _changing:
        _change(_own, (*_beside, instrument))
    try:
        yield
    finally:
        with _changing:
            place = next(n for n, one in enumerate(_beside) if one is instrument)
            _change(_own, _beside[:place] + _beside[place + 1 :])


class _Together:
    """Reports to several instruments; what happens to one of them does not concern the others."""

    def __init__(self, all_of_them: tuple[Instrument, ...]) -> None:
        self._all = all_of_them

    def begin(self, name: str, object: str) -> list[Any]:
        return [_told(one.begin, name, object) for one in self._all]

    def begin_handling(
        self, name: str, object: str, headers: Iterable[Mapping[str, bytes]]
    ) -> list[Any]:
        return [_begin_handling(one, name, object, headers) for one in self._all]

    def end(self, token: Any, event: Event) -> None:
        for one, own in zip(self._all, token, strict=True):
            _told(one.end, own, event)

    def count(self, name: str, object: str, n: int = 1) -> None:
        for one in self._all:
            _told(one.count, name, object, n)


def _begin_handling(
    instrument: Instrument, name: str, object: str, headers: Iterable[Mapping[str, bytes]]
) -> Any:
    """Tell an instrument of a handler that begins, with the headers of its messages if it asks."""
    begin = getattr(instrument, "begin_handling", None)
    if begin is None:
        return _told(instrument.begin, name, object)
    return _told(begin, name, object, headers)


class Observation:
    """An operation under way: filled in as it continues, reported by ``end``, once."""

    __slots__ = ("_began", "_clock", "_instrument", "_token", "bytes", "messages", "name", "object")

    def __init__(
        self,
        instrument: Instrument,
        name: str,
        object: str,
        clock: Callable[[], float] = time.perf_counter,
        handled: Iterable[Any] = (),
    ) -> None:
        self._instrument, self._clock = instrument, clock
        self.name, self.object, self.messages, self.bytes = name, object, 0, 0
        if handled and hasattr(instrument, "begin_handling"):
            headers = [message.headers for message in handled]
            self._token = _begin_handling(instrument, name, object, headers)
        else:
            self._token = _told(instrument.begin, name, object)
        self._began = clock()

    def end(self, outcome: Outcome = "ok", error: BaseException | None = None) -> None:
        """Report that the operation is over."""
        kind = "" if error is None else type(error).__name__
        took = self._clock() - self._began
        event = Event(self.name, self.object, outcome, took, self.messages, self.bytes, kind)
        _told(self._instrument.end, self._token, event)


def observe(name: str, object: str, handled: Iterable[Any] = ()) -> Observation | None:
    """Begin to observe an operation; returns None when no instrument is installed.

    ``handled`` are the messages that it works on: an instrument that has ``begin_handling`` is
    given their headers, which may hold the context of a trace, and nothing else of them.
    """
    if _installed is None:
        return None
    return Observation(_installed, name, object, handled=handled)


def observe_handler(source: str, item: Any) -> Observation | None:
    """Begin to observe the handler of a message; ``source`` is what its worker takes messages from.

    Of a message of a topic the object is `rides/3/totals`: a group of the stream of its partition.
    """
    if _installed is None:
        return None
    partition = getattr(item, "partition", None)
    if partition is not None:
        topic, _, group = source.rpartition("/")
        source = f"{topic}/{partition}/{group}"
    return Observation(_installed, "worker.handle", source, handled=(item,))


def count(name: str, object: str, n: int = 1) -> None:
    """Count something that takes no time of its own, if an instrument is installed."""
    if _installed is not None:
        _told(_installed.count, name, object, n)


def _told(method: Callable[..., Any], *facts: Any) -> Any:
    """Call an instrument; what it raises is logged and does not change the operation."""
    try:
        return method(*facts)
    except Exception:  # noqa: BLE001  whatever it is, a write that is done stays done
        _log.exception("the instrument %r failed", method)
        return None
