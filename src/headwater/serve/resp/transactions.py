"""Transactions of Redis are refused as a whole: no command between MULTI and EXEC is run.

Many clients send MULTI, the commands and EXEC without waiting for a reply. If the commands behind a
refused MULTI were run, the client would raise an error for writes that have happened.
"""

from __future__ import annotations

from typing import Final

from headwater.kernel.declaring import Scope
from headwater.serve.resp.commands import RespCommand, Words
from headwater.serve.resp.faults import CommandRefused
from headwater.serve.resp.replies import OK, StatusReply
from headwater.serve.resp.session import RespSession

# The commands that are still run behind a refused MULTI.
ENDS_TRANSACTION: Final = frozenset(("EXEC", "DISCARD", "RESET", "QUIT"))


def multi(session: RespSession, _: Words) -> StatusReply:
    """MULTI: refused, and so is what follows until EXEC, DISCARD or RESET."""
    session.discarding = True
    raise CommandRefused(
        "MULTI is not supported, and nothing of this transaction is run; use pipelines without "
        "transactions, in redis-py pipeline(transaction=False)"
    )


def execute(session: RespSession, _: Words) -> StatusReply:
    """EXEC: end a refused transaction; raises CommandRefused always."""
    if not session.discarding:
        raise CommandRefused("EXEC without MULTI")
    session.discarding = False
    raise CommandRefused("Transaction discarded because of previous errors.", "EXECABORT")


def discard(session: RespSession, _: Words) -> StatusReply:
    """DISCARD: end a refused transaction; raises CommandRefused without one."""
    if not session.discarding:
        raise CommandRefused("DISCARD without MULTI")
    session.discarding = False
    return OK


_T = "transactions"
TRANSACTION_COMMANDS: Final = (
    RespCommand("MULTI", 1, Scope.READ, 0, _T, "",
                "Refused; commands after it are refused, too, until the transaction ends.", multi),
    RespCommand("EXEC", 1, Scope.READ, 0, _T, "",
                "Ends a refused transaction, of which nothing was run, by EXECABORT.", execute),
    RespCommand("DISCARD", 1, Scope.READ, 0, _T, "",
                "Ends a refused transaction, of which nothing was run.", discard),
)  # fmt: skip
