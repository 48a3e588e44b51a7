"""Who waits for calls of a store: a call that was not sent yet is given up when its caller is gone.

A server retries calls for its clients while its store is down. A client that hung up meanwhile
retries by itself, so that its call would happen twice. Callers are those of one task: the tasks
that it starts may serve others as well.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, Literal, NoReturn, TypeAlias
from weakref import WeakKeyDictionary

import redis.exceptions as redis_errors

from headwater.errors import (
    AccessDenied,
    BrokenObject,
    FormatTooNew,
    HeadwaterError,
    LogError,
    OutcomeUnknown,
    ReusedSequence,
    StaleSequence,
    StoreError,
    StoreTooOld,
    StoreUnreachable,
    TooManyClients,
    UnreadableNode,
)
from headwater.kernel import instrument
from headwater.kernel.instrument import Instrument, Observation
from headwater.store.call import Call, Look, Many, Wait, object_of
from headwater.store.library import FORMAT

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


# ── Faults ────────────────────────────────────────────────────────────────────────────────────────
# What a failed call means, and what to do about it; shared by the sync and the async store.
#
# A call that was not sent, or that the server refused to run, did not happen: it may be sent
# again. A connection that broke after sending proves nothing: then only calls that are safe to
# repeat are.


# How long a call waits for a server that is down or not ready: a restart, a failover.
PATIENCE_S = 30.0
LOADS = 3
_REFUSAL = re.compile(r"\bHW_([A-Z_]+)((?: \S+)*)")
_CODE = re.compile(r"[A-Z]+\b")
# The server answered, and its answer says that it did not run the call but may soon.
_BUSY = {"BUSY", "TRYAGAIN", "NOREPLICAS"}
# The same, but not this server, or not on this connection.
_ELSEWHERE = {"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "UNBLOCKED"}

# A command inside a function that its caller has no right to; Redis 7.0 does not say which.
_DENIED = re.compile("ACL failure in script|user executing the script can't (run|access)")

# There is no server: its port refuses, its socket or its name is missing. The second is the answer
# for the address ::1 of localhost on a machine without IPv6.
_NOBODY = {errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.ENOENT, socket.EAI_NONAME}

# The server says so in place of a greeting, and closes the connection.
_TOO_MANY = "max number of clients"

Step: TypeAlias = Literal["load", "wait", "renew"]
# Of several that are due the first is taken.
STEPS: Final[tuple[Step, ...]] = ("load", "renew", "wait")


class Refusal(Exception):
    """A function refused by its own rules: ``code`` and the words that follow it."""

    def __init__(self, code: str, words: list[str]) -> None:
        super().__init__(code, *words)
        self.code = code
        self.words = words

    def of_sequence(self, name: str, producer: str | None, sequence: int | None) -> LogError:
        """Return the error of an object that refused the sequence of a producer."""
        numbers = [int(word) for word in self.words]
        kind = ReusedSequence if self.code == "REUSED" else StaleSequence
        return kind(name, str(producer), int(sequence or 0), *numbers)


class NobodyListens(redis_errors.ConnectionError):
    """Every address that was tried refused a connection, or is not known."""


class Unsent(redis_errors.ConnectionError):
    """A call did not reach the server whole, so it did not happen; the cause says why."""


def unsent(error: BaseException) -> Unsent:
    """Return the error for a call that was not sent, with its cause.

    Raises what our own code refused while it connected: redis-py's asyncio wraps that, too.
    """
    if isinstance(error, Unsent):
        return error
    if isinstance(error.__cause__, StoreError):
        raise error.__cause__ from None
    found = Unsent(str(error))
    found.__cause__ = error
    return found


class Recovery:
    """One call that failed, until it succeeds or its caller gets an error.

    A server that is down or not ready is waited for ``patience_s``, which is PATIENCE_S unless the
    caller knows better. As long as no server has answered, ``absent_s`` is the limit instead, if it
    is given, and ``first`` makes a port that refuses final: nothing says that a server was there.
    """

    def __init__(
        self,
        request: Call | Wait,
        where: str,
        patience_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        absent_s: float | None = None,
        first: bool = False,
    ) -> None:
        self._request = request
        self._where = where
        self._clock = clock
        self._since = clock()
        self._until = self._since + (PATIENCE_S if patience_s is None else patience_s)
        self._absent_until = None if absent_s is None else clock() + absent_s
        self._first = first
        self._loads = 0
        self._perhaps_done = False
        self.delay_s = 0.005

    def next_step(self, error: BaseException) -> Step:
        """Return how to continue: load the library; wait ``delay_s``; or wait, then reconnect.

        Raises Refusal for a function's own answer, else an error of the StoreError tree.
        """
        if isinstance(error, HeadwaterError):
            # It is for the caller, for example from a test that makes a call fail.
            raise error
        if _code(_cause(error)):
            self.note_answer()
        step = self._next_step(error)
        self.check_caller(error)
        instrument.count("store.retry", _reason(error))
        return step

    def check_caller(self, error: BaseException) -> None:
        """Raise CallerGone, or OutcomeUnknown, when nobody waits for the call any more.

        Who has only closed its side of the connection may still wait: a short fault is got over.
        """
        if self._clock() - self._since >= BRIEF_S and is_given_up():
            self._refuse_to_guess("its caller is gone", error)
            raise CallerGone from error

    def note_answer(self) -> None:
        """Note that a server of the store has answered: the store is there, if not ready."""
        self._absent_until, self._first = None, False

    def _next_step(self, error: BaseException) -> Step:
        sent = not isinstance(error, Unsent)
        error = _cause(error)
        code, text = _code(error), str(error)
        self.delay_s = min(self.delay_s * 2, 0.5)
        if isinstance(error, redis_errors.ResponseError):
            refusal = _REFUSAL.search(text)
            if refusal:
                check_format(error, self._request, self._where)
                _check_damaged(refusal, self._request)
                raise Refusal(refusal[1], refusal[2].split()) from None
            if "Function not found" in text:
                return self._load(error)
        if is_access(error):
            _raise_access(error, self._where)
        if _TOO_MANY in text:
            self._refuse_to_guess(text, error)
            raise TooManyClients(self._where) from error
        if code in _BUSY or code in _ELSEWHERE:
            if self._clock() < self._until:
                return "wait" if code in _BUSY else "renew"
            self._refuse_to_guess(text, error)
            raise StoreError(
                f"the store at {self._where} cannot serve now: {text}; try again later"
            ) from error
        if _is_disconnect(error):
            return self._reconnect(error, sent)
        if code == "WRONGTYPE" or (code in ("", "ERR") and "@user_function" in text):
            # A key of the object does not hold what a function expects there.
            kind, name = object_of(self._request.key) if self._request.key else ("store", "")
            why = text.partition(" script: ")[0]
            raise BrokenObject(self._where, kind, name, why) from error
        raise _answered(error, code, text, self._where) from error

    def _load(self, error: BaseException) -> Step:
        self._loads += 1
        if self._loads > LOADS:
            raise StoreError(
                f"the function library keeps disappearing from {self._where}; "
                "find out who runs FUNCTION FLUSH or FUNCTION DELETE there"
            ) from error
        return "load"

    def _reconnect(self, error: BaseException, sent: bool) -> Step:
        request = self._request
        why = str(error) or "no answer in time"
        if isinstance(error, ssl.SSLError):
            why = f"TLS failed ({error})"
        if sent and isinstance(request, Call) and not request.read_only:
            self._perhaps_done = True
            if not request.repeatable:
                self._refuse_to_guess(why, error)
        until = self._until if self._absent_until is None else self._absent_until
        lasting = _is_lasting(error, sent, self._where)
        absent = self._first and _is_absent(error, self._where)
        if self._clock() < until and not lasting and not absent:
            return "renew"
        self._refuse_to_guess(why, error)
        raise StoreUnreachable(self._where, why, lasting=lasting) from error

    def _refuse_to_guess(self, why: str, error: BaseException) -> None:
        """Raise OutcomeUnknown if an attempt may have happened; a failed repeat proves nothing."""
        if self._perhaps_done and isinstance(self._request, Call):
            raise OutcomeUnknown(self._request.function, why) from error


def fault_of_one(error: Exception) -> str:
    """Return why one object cannot be used, for a caller that continues with the next one.

    Raises what concerns the whole store.
    """
    if isinstance(error, StoreError) and not isinstance(error, BrokenObject):
        raise error
    return str(error) if isinstance(error, HeadwaterError) else f"{type(error).__name__}: {error}"


def check_format(error: BaseException, request: Call | Wait, where: str) -> None:
    """Raise FormatTooNew when a function refused an object that a newer release has written."""
    refusal = _REFUSAL.search(str(error))
    if refusal is None or refusal[1] != "FORMAT":
        return
    kind, name = object_of(request.key) if request.key else ("store", "")
    what = f"the store at {where}" if kind == "store" else f"{kind} {name!r} at {where}"
    raise FormatTooNew(what, int(refusal[2].split()[0]), FORMAT) from None


def _check_damaged(refusal: re.Match[str], request: Call | Wait) -> None:
    """Raise UnreadableNode when a function met a row of an index that is damaged."""
    if refusal[1] == "DAMAGED":
        name = object_of(request.key)[1] if request.key else ""
        base = int(refusal[2].split()[0])
        raise UnreadableNode("a row of the index is damaged", name, base) from None


def _cause(error: BaseException) -> BaseException:
    """Find why a call could not be sent: the client wraps a refused login or a TLS failure.

    Only then: what happened before in the caller's program must not explain an error after sending.
    """
    if not isinstance(error, Unsent) or error.__cause__ is None:
        return error
    outer = error.__cause__
    if isinstance(outer.__cause__, redis_errors.RedisError | ssl.SSLError):
        return outer.__cause__
    return outer.__context__ if isinstance(outer.__context__, ssl.SSLError) else outer


def _code(error: BaseException) -> str:
    """Return the code by which a server's answer begins; redis-py cuts off those that it knows."""
    known = getattr(error, "status_code", None)
    if isinstance(known, str):
        return known
    word = _CODE.match(str(error)) if isinstance(error, redis_errors.ResponseError) else None
    return word[0] if word else ""


def _reason(error: BaseException) -> str:
    """Return, for instruments, why a call is sent again."""
    if isinstance(error, Unsent):
        return _code(_cause(error)) or "unreachable"
    if _is_disconnect(error):
        return _code(error) or "disconnected"
    return "library missing" if "Function not found" in str(error) else _code(error)


def _is_disconnect(error: BaseException) -> bool:
    """Return whether the connection failed, and not the server."""
    return isinstance(
        error,
        redis_errors.ConnectionError
        | redis_errors.TimeoutError
        | redis_errors.InvalidResponse
        | OSError,
    )


def _is_lasting(error: BaseException, sent: bool, where: str) -> bool:
    """Return whether waiting cannot help: no client could connect by this URL as it is.

    An unknown host does not count: the name of a server that restarts may be missing.
    """
    if isinstance(error, redis_errors.InvalidResponse):
        # The first answer on a connection was not that of a Redis server.
        return not sent
    if isinstance(error, ssl.SSLCertVerificationError):
        return True
    found = error.__context__ if isinstance(error, redis_errors.ConnectionError) else error
    # Of certificates; a socket that is missing is that of a server that restarts.
    return isinstance(found, FileNotFoundError) and where.startswith("rediss")


def nobody_listens(error: BaseException) -> bool:
    """Return whether a connection failed because there is no server at that address."""
    found = error if isinstance(error, OSError) else error.__context__
    if not isinstance(found, OSError):
        return isinstance(error, NobodyListens)
    # asyncio puts the errors of several addresses of a host into one text.
    refused = f"[Errno {errno.ECONNREFUSED}]" in str(found)
    return refused or found.errno in _NOBODY


def _is_absent(error: BaseException, where: str) -> bool:
    """Return whether there is no server; a primary that sentinels name is waited for."""
    if "+sentinel:" in where:
        return isinstance(error, NobodyListens)
    return nobody_listens(error)


def is_access(error: BaseException) -> bool:
    """Return whether a server refused a user: it did not log in, or has not the right."""
    refused = redis_errors.AuthenticationError | redis_errors.NoPermissionError
    return isinstance(error, refused) or _DENIED.search(str(error)) is not None


def _raise_access(error: BaseException, where: str) -> NoReturn:
    """Turn the server's refusal of a user into one error with a cure; never shows the password."""
    text = str(error)
    if isinstance(error, redis_errors.NoPermissionError) or _DENIED.search(text):
        if "access" in text and "key" in text:
            cure = "grant the user ~hw:*, and for a dirty list NAME also ~NAME and ~NAME/ick/*"
        else:
            cure = "grant the user that command, and those that `headwater doctor` lists"
        why = text.removeprefix("ACL failure in script: ").partition(" script: ")[0]
        raise AccessDenied(where, why, cure) from error
    if _code(error) == "NOAUTH":
        cure = "put it into the URL (redis://user:password@host, redis://:password@host)"
        raise AccessDenied(where, "it asks for a password", cure) from None
    if "without any password configured" in text:
        raise AccessDenied(where, "it has no password", "take it out of the URL") from None
    cure = "correct them in the URL (redis://user:password@host)"
    raise AccessDenied(where, "wrong user name or password", cure) from None


def _answered(error: BaseException, code: str, text: str, where: str) -> StoreError:
    if code == "OOM":
        return StoreError(
            f"the store at {where} is out of memory: {text}; raise maxmemory or evict old messages"
        )
    if "cluster support disabled" in text:
        return lasting_error(f"the server at {where} is not a cluster; use a redis:// URL")
    if text.startswith("unknown command 'FCALL"):
        return lasting_error(
            f"the server at {where} runs no functions: it is the RESP door of `headwater serve`, "
            "or FCALL is disabled; give the URL of the store itself"
        )
    if isinstance(error, redis_errors.ResponseError):
        text = f"answered: {text}"
    return StoreError(f"the store at {where} {text}; run `headwater doctor`")


def lasting_error(text: str) -> StoreError:
    """Return an error that only a person can fix."""
    error = StoreError(text)
    error.lasting = True
    return error


def check_server(info: dict[str, str], where: str) -> str:
    """Return the server's name and version; raises StoreTooOld when it lacks what we need."""
    if "valkey_version" in info:
        name, version, least = "Valkey", info["valkey_version"], (7, 2)
    else:
        name, version, least = "Redis", info["redis_version"], (7, 0)
    found = tuple(int(part) for part in version.split(".")[:2])
    if found < least:
        raise StoreTooOld(where, f"{name} {version}")
    return f"{name} {version}"


def refuse_node(info: dict[str, str], where: str) -> None:
    """Raise StoreError for a node of a cluster, which has not every key, and for a sentinel."""
    modes = (info.get("redis_mode"), info.get("server_mode"))
    if "sentinel" in modes:
        raise lasting_error(
            f"the server at {where} is a sentinel; use a redis+sentinel:// URL with its service"
        )
    if "cluster" in modes:
        raise lasting_error(
            f"the server at {where} is one node of a cluster; use a redis+cluster:// URL"
        )


def parse_info(text: bytes) -> dict[str, str]:
    """Parse the reply of INFO into its fields."""
    return dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)


# ── Observing ─────────────────────────────────────────────────────────────────────────────────────
# What both stores report of a request: its name, its object, how much it moved, how it ended.


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
