"""Commands by which clients introduce themselves; the texts of errors are those of Redis.

Clients take another text for another server, and give up or open circuit breakers.
"""

from __future__ import annotations

import time
from typing import Any, Final

from headwater.kernel.declaring import Scope
from headwater.serve.resp.arguments import Arguments
from headwater.serve.resp.commands import RespCommand, Words, unknown_subcommand, wrong_arity
from headwater.serve.resp.door import RespSession
from headwater.serve.resp.replies import OK, CommandRefused, StatusReply, Verbatim

# Clients choose their features by it: functions, RESP3, CLIENT SETINFO. Not by Headwater's own.
REDIS_VERSION: Final = "7.4.0"
_MUST_LOG_IN: Final = (
    "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH "
    "<user> <pass> option can be used to authenticate the client and select the RESP protocol "
    "version at the same time"
)
_NO_PASSWORD: Final = (
    "AUTH <password> called without any password configured for the default user. Are you sure "
    "your configuration is correct?"
)
_CLIENT_HELP: Final = (
    "CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "GETNAME", "    Return the name of the current connection.",
    "ID", "    Return the ID of the current connection.",
    "INFO", "    Return information about the current client connection.",
    "LIST", "    Return information about client connections.",
    "NO-EVICT (ON|OFF)", "    Accepted, and without effect.",
    "NO-TOUCH (ON|OFF)", "    Accepted, and without effect.",
    "REPLY ON", "    Accepted, and without effect.",
    "SETNAME <name>", "    Assign the name <name> to the current connection.",
    "SETINFO (LIB-NAME|LIB-VER) <value>", "    Say which library the client is.",
    "HELP", "    Print this help.",
)  # fmt: skip


def hello(session: RespSession, words: Words) -> dict[str, Any]:
    """HELLO: choose the protocol, log in, take a name; returns what the server is."""
    arguments = Arguments(words)
    protocol, name = session.protocol, None
    grant = session.grant
    if arguments:
        spelled = arguments.take()
        if not spelled.isdigit():
            raise CommandRefused("Protocol version is not an integer or out of range")
        if spelled not in (b"2", b"3"):
            raise CommandRefused("unsupported protocol version", "NOPROTO")
        protocol = int(spelled)
    try:
        for option in arguments.options():
            if option == "AUTH" and len(words) >= 3:
                arguments.take()
                session.log_in(arguments.take().decode("utf-8", "surrogateescape"))
            elif option == "SETNAME":
                name = client_name(arguments.take())
            else:
                raise CommandRefused(f"Syntax error in HELLO option '{option.lower()}'")
    except CommandRefused:
        session.grant = grant
        raise
    if session.grant is None:
        raise CommandRefused(_MUST_LOG_IN, "NOAUTH")
    session.protocol = protocol
    if name is not None:
        session.name = name
    return {
        "server": "redis",
        "version": REDIS_VERSION,
        "proto": protocol,
        "id": session.id,
        "mode": "standalone",
        "role": "master",
        "modules": [],
    }


def auth(session: RespSession, words: Words) -> StatusReply:
    """AUTH: log in by a token; a user's name before it is ignored."""
    if len(words) > 3:
        raise CommandRefused("syntax error")
    if not session.door.tokens.required and len(words) == 2:
        raise CommandRefused(_NO_PASSWORD)
    session.log_in(words[-1].decode("utf-8", "surrogateescape"))
    return OK


def ping(_: RespSession, words: Words) -> StatusReply | bytes:
    """PING: return PONG, or the argument."""
    if len(words) > 2:
        raise wrong_arity("ping")
    return words[1] if len(words) == 2 else StatusReply("PONG")


def echo(_: RespSession, words: Words) -> bytes:
    """ECHO: return the argument."""
    return words[1]


def leave(session: RespSession, _: Words) -> StatusReply:
    """QUIT: close the connection."""
    session.ending = True
    return OK


def reset(session: RespSession, _: Words) -> StatusReply:
    """RESET: start again, as a connection does."""
    session.reset()
    return StatusReply("RESET")


def select(_: RespSession, words: Words) -> StatusReply:
    """SELECT: there is one database, 0."""
    if Arguments(words).number():
        raise CommandRefused("DB index is out of range")
    return OK


def readonly(_: RespSession, __: Words) -> StatusReply:
    """READONLY and READWRITE: refused as by a server that is not a cluster."""
    raise CommandRefused("This instance has cluster support disabled")


def client(session: RespSession, words: Words) -> Any:
    """CLIENT: what clients report about themselves and ask about their connection."""
    subcommand = words[1].upper()
    expected = _CLIENT_WORDS.get(subcommand)
    if expected is None:
        raise unknown_subcommand(words)
    if expected and len(words) != expected:
        raise wrong_arity(f"client|{subcommand.decode().lower()}")
    match subcommand:
        case b"ID":
            return session.id
        case b"GETNAME":
            return session.name or None
        case b"SETNAME":
            session.name = client_name(words[2])
            return OK
        case b"SETINFO":
            return _set_info(session, words)
        case b"INFO":
            return Verbatim(shown(session) + "\n")
        case b"LIST":
            everybody = session.door.sessions.values()
            return Verbatim("".join(f"{shown(one)}\n" for one in everybody))
        case b"HELP":
            return [StatusReply(line) for line in _CLIENT_HELP]
        case b"REPLY":
            if words[2].upper() != b"ON":
                raise CommandRefused("syntax error")
            return OK
        case _:
            if words[2].upper() not in (b"ON", b"OFF"):
                raise CommandRefused("syntax error")
            return OK


# How many words a subcommand has; 0 is any number.
_CLIENT_WORDS: Final = {
    b"ID": 2, b"GETNAME": 2, b"SETNAME": 3, b"SETINFO": 4, b"INFO": 2, b"LIST": 0, b"HELP": 2,
    b"REPLY": 3, b"NO-EVICT": 3, b"NO-TOUCH": 3,
}  # fmt: skip


def _wider(words: Words) -> Scope | None:
    """Return that only an administrator sees other clients."""
    return Scope.ADMIN if words[1].upper() == b"LIST" else None


def _set_info(session: RespSession, words: Words) -> StatusReply:
    option = words[2].upper()
    value = words[3].decode("utf-8", "replace")
    if any(not "!" <= sign <= "~" for sign in value):
        raise CommandRefused(
            f"{option.decode('utf-8', 'replace').lower()} cannot contain spaces, newlines or "
            "special characters."
        )
    if option == b"LIB-NAME":
        session.library = value[:200]
    elif option == b"LIB-VER":
        session.library_version = value[:200]
    else:
        raise CommandRefused(f"Unrecognized option '{words[2].decode('utf-8', 'replace')}'")
    return OK


def client_name(word: bytes) -> str:
    """Accept the name of a connection; raises CommandRefused."""
    name = word.decode("utf-8", "replace")
    if any(not "!" <= sign <= "~" for sign in name) or len(name) > 200:
        raise CommandRefused("Client names cannot contain spaces, newlines or special characters.")
    return name


def shown(session: RespSession) -> str:
    """Return a line about a client, as CLIENT LIST does."""
    age = int(time.monotonic() - session.since)
    return (
        f"id={session.id} addr={session.address} name={session.name} age={age} "
        f"flags={'b' if session.blocked else 'N'} db=0 cmd={session.last_command or 'NULL'} "
        f"user={session.grant.holder.replace(' ', '-') if session.grant else '-'} "
        f"resp={session.protocol} lib-name={session.library} lib-ver={session.library_version}"
    )


_C = "connection"
HANDSHAKE: Final = (
    RespCommand("HELLO", -1, None, 0, _C, "[protover [AUTH username token] [SETNAME clientname]]",
                "Chooses RESP2 or RESP3, logs in and returns what the server is.", hello),
    RespCommand("AUTH", -2, None, 0, _C, "[username] token",
                "Logs in by a token; the user's name is ignored.", auth),
    RespCommand("PING", -1, Scope.READ, 0, _C, "[message]",
                "Returns PONG, or the message.", ping),
    RespCommand("ECHO", 2, Scope.READ, 0, _C, "message", "Returns the message.", echo),
    RespCommand("QUIT", -1, None, 0, _C, "", "Closes the connection.", leave),
    RespCommand("RESET", 1, None, 0, _C, "", "Resets the connection to its initial state.", reset),
    RespCommand("SELECT", 2, Scope.READ, 0, _C, "index",
                "Accepts database 0, the only one.", select),
    RespCommand("READONLY", 1, Scope.READ, 0, _C, "",
                "Refused, as by every server that is not a cluster.", readonly),
    RespCommand("READWRITE", 1, Scope.READ, 0, _C, "",
                "Refused, as by every server that is not a cluster.", readonly),
    RespCommand("CLIENT", -2, Scope.READ, 0, _C, "subcommand [argument ...]",
                "ID, GETNAME, SETNAME, SETINFO, INFO, LIST, NO-EVICT, NO-TOUCH, REPLY ON.",
                client, wider=_wider),
)  # fmt: skip


# The commands that are still run behind a refused MULTI.
ENDS_TRANSACTION: Final = frozenset(("EXEC", "DISCARD", "RESET", "QUIT"))


def multi(session: RespSession, _: Words) -> StatusReply:
    """MULTI: refused, and so is what follows until EXEC, DISCARD or RESET.

    Many clients send MULTI, the commands and EXEC without waiting for a reply. If the commands were
    run, the client would raise an error for writes that have happened.
    """
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
