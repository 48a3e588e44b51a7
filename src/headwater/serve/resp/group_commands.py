"""Commands of groups: TREAD with a group, TACK, TNACK, TEXTEND, TSEEK, TDEAD, TREDRIVE."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final, NamedTuple

from headwater.doors.catalogue import GROUP
from headwater.errors import UnknownStream
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES
from headwater.log.aio_group import AsyncGroup
from headwater.log.aio_stream import AsyncStream
from headwater.log.types import DeadLetter, Message, TopicDeadLetter
from headwater.serve.listing import letters_of_group
from headwater.serve.resp.arguments import Arguments, ReadOptions
from headwater.serve.resp.commands import RespCommand, Words
from headwater.serve.resp.derived import commands_of
from headwater.serve.resp.door import RespSession
from headwater.serve.resp.replies import (
    EncodedReply,
    MessageForm,
    encode_array,
    group_facts,
    spell_messages,
    stream_facts,
    syntax_error,
)

LETTERS: Final = 100


async def read_group(
    session: RespSession, stream: AsyncStream, options: ReadOptions
) -> EncodedReply:
    """Take messages as a member of a group; the offset is ignored."""
    assert options.group is not None
    group = stream.group(
        options.group,
        options.start,
        member=session.name or None,
        max_pending=options.max_pending,
        dead_letters=options.dead_letters,
        ordered=options.ordered,
    )
    bounds: list[int] = []

    async def read(block_ms: float) -> list[Message]:
        if not options.with_info:
            return await group.read(
                options.count,
                block_ms=block_ms,
                ack_ms=options.retry_ms,
                expire_ms=options.expire_ms,
                max_bytes=LIST_BYTES,
            )
        found = await group.read(
            options.count,
            block_ms=block_ms,
            ack_ms=options.retry_ms,
            expire_ms=options.expire_ms,
            with_info=True,
            max_bytes=LIST_BYTES,
        )
        bounds[:] = found.first, found.last
        return found.messages

    if options.block_ms and options.count:
        place = ("group", stream.name, options.group)
        with session.may_wait():
            messages = await session.door.waiting.in_turn(place, options.block_ms, read)
        if options.with_info and not bounds:
            # Its turn did not come in time.
            messages = await read(0)
    else:
        async with session.door.at_store:
            messages = await read(0)
    info = (bounds[0], bounds[1]) if bounds else None
    form = MessageForm(session.protocol, options.with_attempt, options.with_headers)
    return EncodedReply(encode_array(len(messages), spell_messages(messages, form), info))


def _group(session: RespSession, arguments: Arguments) -> AsyncGroup:
    stream = session.door.writes.stream(arguments.text())
    return stream.group(arguments.text(), member=session.name or None)


async def tdead(session: RespSession, words: Words) -> list[Any]:
    """TDEAD: return dead letters."""
    arguments = Arguments(words)
    stream, group = arguments.text(), arguments.text()
    asked = letters_asked(arguments)
    found = await letters_of_group(session.door.client, stream, group, asked.most, asked.start)
    rows: list[Any] = [letter_row(letter) for letter in found.items]
    return [found.next, *rows] if asked.with_next else rows


class LettersAsked(NamedTuple):
    """Which dead letters a command asks for; ``with_next`` has the place to go on from first."""

    most: int = LETTERS
    start: str = ""
    with_next: bool = False


def letters_asked(arguments: Arguments) -> LettersAsked:
    """Read what a command that lists dead letters asks for."""
    found: dict[str, Any] = {}
    for option in arguments.options():
        match option:
            case "COUNT":
                found["most"] = arguments.number()
            case "FROM":
                found["start"] = arguments.text()
            case "WITHNEXT":
                found["with_next"] = True
            case _:
                raise syntax_error()
    return LettersAsked(**found)


def letter_row(letter: DeadLetter | TopicDeadLetter) -> list[Any]:
    """Return what a reply says of a dead letter."""
    cause = letter.cause
    said = None if cause is None else str(cause)
    return [letter.origin, letter.tag, letter.value, letter.attempts, letter.buried_ms, said]


async def tredrive(session: RespSession, words: Words) -> list[int]:
    """TREDRIVE: have dead letters redelivered."""
    arguments = Arguments(words)
    group = _group(session, arguments)
    if not arguments:
        return list(await group.redrive())
    return list(await group.redrive(count_of(arguments, 0)))


def count_of(arguments: Arguments, otherwise: int) -> int:
    """Return what COUNT says, if it is given; nothing else may follow."""
    count = arguments.number() if arguments.take_option("COUNT") else otherwise
    arguments.end()
    return count


async def tinfo(session: RespSession, words: Words) -> dict[str, Any]:
    """TINFO: return where a stream or a group stands."""
    arguments = Arguments(words)
    stream = session.door.writes.stream(arguments.text())
    if not arguments.take_option("GROUP"):
        arguments.end()
        found = await stream.info()
        if not (found.exists or found.groups or found.readers):
            raise UnknownStream(stream.name)
        return stream_facts(found)
    group = stream.group(arguments.text())
    arguments.end()
    return group_facts(await group.info())


def look_at_stream(session: RespSession, words: Words) -> Awaitable[dict[str, Any]]:
    """Return where the stream of a command stands."""
    return tinfo(session, [b"TINFO", words[1]])


def look_at_group(session: RespSession, words: Words) -> Awaitable[dict[str, Any]]:
    """Return where the group of a command stands."""
    return tinfo(session, [b"TINFO", words[1], b"GROUP", words[2]])


_T = "stream"
_OFFSETS = "offset|start-end [offset|start-end ...]"
GROUP_COMMANDS: Final = (
    RespCommand("TDEAD", -3, Scope.READ, -1, _T,
                "key group [COUNT count] [FROM place] [WITHNEXT]",
                "Returns the oldest dead letters, no more once they have 4 MiB: [[offset, tag, "
                "entry, attempts, buried-ms, cause], ...]. WITHNEXT has the place before them from "
                "which the next list goes on, or null.", tdead),
    RespCommand("TREDRIVE", -3, Scope.ADMIN, -1, _T, "key group [COUNT count]",
                "Redrives dead letters; returns how many, and how many are gone.", tredrive,
                look=look_at_group),
    RespCommand("TINFO", -2, Scope.READ, -1, _T, "key [GROUP group]",
                "Returns the state of a stream, or of a group of it.", tinfo),
    *commands_of(GROUP, look_at_group),
)  # fmt: skip
