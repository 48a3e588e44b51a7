"""What a failed call means, and what to do about it; shared by the sync and the async store.

A server's refusal to run a call proves that nothing happened, so the call may be sent again. A
connection that broke after sending proves nothing: then only calls that are safe to repeat are.
"""

from __future__ import annotations

import re
import ssl
from typing import Any, Literal, NamedTuple, NoReturn

import redis.exceptions as redis_errors

from headwater.errors import AccessDenied, OutcomeUnknown, StoreError, StoreTooOld, StoreUnreachable
from headwater.store.call import Call, Wait

PATIENCE_S = 10.0
_REFUSAL = re.compile(r"\bHW_([A-Z_]+)((?: \S+)*)")
# The server answered, and its answer says that it did not run the call but may soon.
_NOT_NOW = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY ", "NOREPLICAS")


class Refusal(Exception):
    """A function refused by its own rules: ``code`` and the words that follow it."""

    def __init__(self, code: str, words: list[str]) -> None:
        super().__init__(code, *words)
        self.code = code
        self.words = words


class Verdict(NamedTuple):
    """How to go on after a failure: load the library, or wait and send again."""

    action: Literal["load", "again"]
    delay_s: float


def judge(
    error: BaseException, request: Call | Wait, where: str, tries: int, waited_s: float
) -> Verdict:
    """Decide how to go on after ``error``, or raise what the caller should see.

    Raises Refusal for a function's own answer, else an error of the StoreError tree.
    """
    text = str(error)
    delay = min(0.01 * 2**tries, 0.5)
    if isinstance(error, redis_errors.ResponseError):
        refusal = _REFUSAL.search(text)
        if refusal:
            raise Refusal(refusal[1], refusal[2].split()) from None
        if "Function not found" in text:
            if tries > 3:
                raise StoreError(
                    f"the function library keeps disappearing from {where}; "
                    "find out who runs FUNCTION FLUSH or FUNCTION DELETE there"
                ) from error
            return Verdict("load", 0)
    if _is_access(error):
        raise_access(error, where)
    if any(word in text for word in _NOT_NOW) or isinstance(
        error, redis_errors.ClusterDownError | redis_errors.BusyLoadingError
    ):
        if waited_s < PATIENCE_S:
            return Verdict("again", delay)
        raise StoreError(
            f"the store at {where} cannot serve now: {text}; try again later"
        ) from error
    if isinstance(error, redis_errors.OutOfMemoryError) or text.startswith("OOM"):
        raise StoreError(
            f"the store at {where} is out of memory: {text}; raise maxmemory or evict old messages"
        ) from error
    if is_disconnect(error):
        never_sent = _never_sent(error)
        repeatable = isinstance(request, Wait) or request.repeatable or request.read_only
        if never_sent or repeatable:
            if waited_s < PATIENCE_S:
                return Verdict("again", delay)
            raise StoreUnreachable(where, text) from error
        raise OutcomeUnknown(command_name(request), text) from error
    raise StoreError(f"the store at {where} answered: {text}; run `headwater doctor`") from error


def command_name(request: Call | Wait) -> str:
    """Name what was asked, without its arguments."""
    return request.function if isinstance(request, Call) else str(request.command[0])


def is_disconnect(error: BaseException) -> bool:
    """Say whether the connection, not the server, failed."""
    return isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError | OSError)


def _never_sent(error: BaseException) -> bool:
    text = str(error)
    return "connecting to" in text or "Connection refused" in text or "No such file" in text


def _is_access(error: BaseException) -> bool:
    return isinstance(
        error, redis_errors.AuthenticationError | redis_errors.NoPermissionError
    ) or str(error).startswith(("NOAUTH", "NOPERM", "WRONGPASS"))


def raise_access(error: BaseException, where: str) -> NoReturn:
    """Turn the server's refusal of a user into one error with a cure; never shows the password."""
    text = str(error)
    if isinstance(error, redis_errors.NoPermissionError) or "permission" in text.lower():
        raise AccessDenied(
            where,
            text,
            "grant the user ~hw:* and the commands that `headwater doctor` lists",
        ) from error
    raise AccessDenied(
        where, "wrong user name or password", "correct them in the URL (redis://user:password@host)"
    ) from None


def raise_connecting(error: BaseException, where: str) -> NoReturn:
    """Turn a failure of the very first contact into one clear error."""
    if _is_access(error):
        raise_access(error, where)
    cause = error.__cause__ or error.__context__
    if isinstance(error, ssl.SSLError) or isinstance(cause, ssl.SSLError):
        raise StoreUnreachable(where, f"TLS failed ({cause or error})") from error
    if is_disconnect(error):
        raise StoreUnreachable(where, str(error)) from error
    raise StoreError(f"the store at {where} answered: {error}; run `headwater doctor`") from error


def check_version(info: dict[str, Any], where: str) -> str:
    """Name the server; raise StoreTooOld when it lacks what we need."""
    if "valkey_version" in info:
        name, version, least = "Valkey", str(info["valkey_version"]), (7, 2)
    else:
        name, version, least = "Redis", str(info["redis_version"]), (7, 0)
    found = tuple(int(part) for part in version.split(".")[:2])
    if found < least:
        raise StoreTooOld(where, f"{name} {version}")
    return f"{name} {version}"


def parse_info(text: bytes | str) -> dict[str, str]:
    """Parse the reply of INFO into its fields."""
    lines = (text.decode() if isinstance(text, bytes) else text).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)
