"""Commands of groups: TREAD with a group, TACK, TNACK, TEXTEND, TSEEK."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from headwater.doors.catalogue import GROUP
from headwater.errors import UnknownStream
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES
from headwater.log.aio_stream import AsyncStream
from headwater.log.types import Message
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
)


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
    RespCommand("TINFO", -2, Scope.READ, -1, _T, "key [GROUP group]",
                "Returns the state of a stream, or of a group of it.", tinfo),
    *commands_of(GROUP, look_at_group),
)  # fmt: skip
