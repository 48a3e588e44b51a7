"""All commands of the door in one table, and how the command of a client is found and called."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Any, Final

from headwater.serve.audit import audited
from headwater.serve.resp.commands import RespCommand, Words, table_of, unknown_command, wrong_arity
from headwater.serve.resp.door import RespSession
from headwater.serve.resp.handshake import ENDS_TRANSACTION, HANDSHAKE, TRANSACTION_COMMANDS
from headwater.serve.resp.ick_commands import (
    CHANNEL_COMMANDS,
    ICK_COMMANDS,
    TIMED_COMMANDS,
    TIMELINE_COMMANDS,
)
from headwater.serve.resp.introspection import Introspection
from headwater.serve.resp.letter_commands import LETTER_COMMANDS
from headwater.serve.resp.log_commands import GROUP_COMMANDS, STREAM_COMMANDS, TOPIC_COMMANDS
from headwater.serve.resp.queue_commands import QUEUE_COMMANDS
from headwater.serve.resp.replies import CommandRefused, ErrorReply, WrongArguments, error_reply

_introspection = Introspection()
COMMANDS: Final = table_of(
    HANDSHAKE,
    TRANSACTION_COMMANDS,
    _introspection.commands(),
    STREAM_COMMANDS,
    GROUP_COMMANDS,
    TOPIC_COMMANDS,
    LETTER_COMMANDS,
    QUEUE_COMMANDS,
    ICK_COMMANDS,
    CHANNEL_COMMANDS,
    TIMELINE_COMMANDS,
    TIMED_COMMANDS,
)
_introspection.table = COMMANDS


def find_command(words: Words) -> RespCommand:
    """Return the command that words begin with; raises CommandRefused."""
    command = COMMANDS.get(words[0]) or COMMANDS.get(words[0].upper())
    if command is None:
        raise unknown_command(words)
    if not command.accepts(len(words)):
        raise wrong_arity(command.name)
    return command


def call_command(command: RespCommand, session: RespSession, words: Words) -> Any:
    """Call a command if its client may; raises what its handler raises, and CommandRefused."""
    session.authorize(command, words)
    if session.discarding and command.name not in ENDS_TRANSACTION:
        raise CommandRefused(f"'{command.name.lower()}' was not run, because MULTI was refused")
    session.last_command = command.name.lower()
    reply = command.handler(session, words)
    return reply if command.look is None else _audited(session, command, words, reply)


def _audited(
    session: RespSession, command: RespCommand, words: Words, work: Awaitable[Any]
) -> Awaitable[Any]:
    asked = [word.decode("utf-8", "replace") for word in words]
    assert command.look is not None
    facts = {
        "who": "" if session.grant is None else session.grant.holder,
        "request_id": f"resp-{session.id}-{session.door.commands}",
        "what": command.name.lower(),
        "method": "RESP",
        "path": asked[1],
    }
    look = partial(command.look, session, words)
    return audited(session.door.client, asked[1], facts, asked, look, lambda: work)


def refusal(error: BaseException, words: Words) -> ErrorReply:
    """Return the reply to a command that failed.

    Commands that Redis has are refused in its words to the letter, which clients compare. Those of
    our own add how they are written when their arguments do not fit.
    """
    reply = error_reply(error)
    command = COMMANDS.get(words[0].upper())
    if command is None or not command.keys or not isinstance(error, WrongArguments):
        return reply
    return reply._replace(text=f"{reply.text}; write {command.name} {command.syntax}")
