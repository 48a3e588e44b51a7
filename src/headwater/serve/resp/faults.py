"""Errors as clients see them: a code in capitals that programs compare, and a text with the cure.

ERR              the command is refused: unknown, wrong arguments, or against a rule
NOAUTH           the client has shown no token
WRONGPASS        there is no such token
NOPERM           the token does not allow that, or not for this name
READONLY         the server was started to read only
NOPROTO          another protocol than RESP2 and RESP3 was asked for
EXECABORT        MULTI was refused, and so was all that followed it; nothing was done
NOGROUP          the group has never read
NOTFOUND         there is no such stream, topic, queue, dirty list, timed job or timeline farm
STALE            a producer's repeat is older than what is remembered
REUSED           a producer's repeat has other entries than the first time
LEASELOST        another consumer of a channel has taken the shard over
WRONGTYPE        something else is stored under that key
TRYAGAIN         the store is down, or refuses for now; nothing was done
OUTCOME-UNKNOWN  the connection to the store broke after a write was sent; it may be done
LOSTFUTURE       the store has lost messages that were read or written before
DAMAGED          stored bytes cannot be read
"""

from __future__ import annotations

import logging
import secrets
from typing import Final

from headwater import errors
from headwater.serve.resp.replies import ErrorReply

log = logging.getLogger("headwater.serve")

# The first class that fits decides.
_CODES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (errors.OutcomeUnknown, "OUTCOME-UNKNOWN"),
    (errors.UnknownGroup, "NOGROUP"),
    (errors.UnknownStream, "NOTFOUND"),
    (errors.UnknownTopic, "NOTFOUND"),
    (errors.UnknownQueue, "NOTFOUND"),
    (errors.UnknownIck, "NOTFOUND"),
    (errors.UnknownTimedJob, "NOTFOUND"),
    (errors.StaleSequence, "STALE"),
    (errors.ReusedSequence, "REUSED"),
    (errors.LeaseLost, "LEASELOST"),
    (errors.NotAnIck, "WRONGTYPE"),
    (errors.LostFuture, "LOSTFUTURE"),
    (errors.UnreadableNode, "DAMAGED"),
    (errors.QuorumFailed, "TRYAGAIN"),
    (errors.AllReplicasFailed, "TRYAGAIN"),
    (errors.FarmUnreachable, "TRYAGAIN"),
)
ERROR_CODES: Final = (
    "ERR", "NOAUTH", "WRONGPASS", "NOPERM", "READONLY", "NOPROTO", "EXECABORT", "NOGROUP",
    "NOTFOUND", "STALE", "REUSED", "LEASELOST", "WRONGTYPE",
    "TRYAGAIN", "OUTCOME-UNKNOWN", "LOSTFUTURE", "DAMAGED",
)  # fmt: skip


class CommandRefused(Exception):
    """A command is answered with an error."""

    def __init__(self, text: str, code: str = "ERR") -> None:
        super().__init__(text)
        self.code = code


class WrongArguments(CommandRefused):
    """The arguments of a command do not fit it; the reply adds how the command is written."""


def syntax_error() -> WrongArguments:
    """Return the refusal of arguments that make no sense, in the words of Redis."""
    return WrongArguments("syntax error")


def error_reply(error: BaseException) -> ErrorReply:
    """Return the reply to a command that failed; what nobody foresaw is shown in the log only."""
    if isinstance(error, CommandRefused):
        return ErrorReply(error.code, str(error))
    for kind, code in _CODES:
        if isinstance(error, kind):
            return ErrorReply(code, str(error))
    if isinstance(error, errors.StoreError) and not error.lasting:
        return ErrorReply("TRYAGAIN", str(error))
    if isinstance(error, errors.HeadwaterError):
        return ErrorReply("ERR", str(error))
    number = secrets.token_hex(6)
    log.error("command %s failed", number, exc_info=error)
    return ErrorReply(
        "ERR", f"the server failed by a fault of its own; its log says more of command {number}"
    )
