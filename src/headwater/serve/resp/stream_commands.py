"""Commands of streams: TWRITE, TREAD without a group, TEVICT, TINFO; as RCP 11 spells them."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import Final

from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES
from headwater.log.aio_stream import AsyncStream
from headwater.log.reading import read_runs
from headwater.serve.resp.arguments import (
    ReadOptions,
    WriteOptions,
    int_of,
    read_options,
    text_of,
    write_options,
)
from headwater.serve.resp.commands import RespCommand, Words, Write
from headwater.serve.resp.door import Door, RespSession
from headwater.serve.resp.group_commands import look_at_stream, read_group
from headwater.serve.resp.replies import EncodedReply, MessageForm, encode_array, spell_runs

_STEP: Final = 1000


def twrite(session: RespSession, words: Words) -> Write | Awaitable[int]:
    """TWRITE: append one entry, or several."""
    asked = write_options(words)
    if asked.alone:
        return Write(asked.name, asked.entries, asked.size)
    return _write(session.door.writes.stream(asked.name), asked)


async def _write(stream: AsyncStream, asked: WriteOptions) -> int:
    written = await stream.write_many(
        asked.entries,
        backlog=asked.backlog,
        producer=asked.producer,
        sequence=asked.sequence,
    )
    return written.start


def tread(session: RespSession, words: Words) -> Awaitable[EncodedReply]:
    """TREAD: read messages, as a member of a group or without one."""
    options = read_options(words)
    stream = session.door.writes.stream(options.stream)
    if options.group is not None:
        return read_group(session, stream, options)
    return _read(session, stream, options)


async def _read(session: RespSession, stream: AsyncStream, options: ReadOptions) -> EncodedReply:
    form = MessageForm(session.protocol, with_headers=options.with_headers)

    async def read_now() -> EncodedReply | None:
        """Return what there is; None when that is nothing."""
        async with session.door.at_store:
            count, parts, bounds = await _spelled(session.door, options, form)
        if not count and options.count and options.block_ms:
            return None
        return EncodedReply(encode_array(count, parts, bounds if options.with_info else None))

    waiting = session.door.waiting
    if not (options.block_ms and waiting.covers(stream.name, options.offset)):
        found = await read_now()
        if found is not None:
            return found
    wish = (options.offset, options.count, options.with_info, form)
    with session.may_wait():
        found = await waiting.read(stream, options.offset, wish, read_now, options.block_ms)
    if found is None:
        options = replace(options, block_ms=0)
        found = await read_now()
    assert found is not None
    return found


async def _spelled(
    door: Door, options: ReadOptions, form: MessageForm
) -> tuple[int, list[bytes], tuple[int, int]]:
    """Read up to a number of messages or bytes; returns how many, encoded, and the bounds."""
    if not options.count and options.with_info:
        found = await door.writes.stream(options.stream).read(options.offset, 0, with_info=True)
        return 0, [], (found.first, found.last)
    stream = door.writes.reading(options.stream)
    count, size, parts, bounds = 0, 0, list[bytes](), None
    while bounds is None or (count < options.count and size < LIST_BYTES):
        at, step = options.offset + count, min(options.count - count, _STEP)
        runs = await door.client.store.run(read_runs(stream, at, step, max_bytes=LIST_BYTES - size))
        spelled = spell_runs(runs, at, form)
        size += sum(map(len, spelled))
        parts += spelled
        count += runs.places
        bounds = bounds or (runs.first, runs.last)
        if not runs.places or at + runs.places > runs.last:
            break
    return count, parts, bounds


async def tevict(session: RespSession, words: Words) -> int:
    """TEVICT: remove old messages."""
    return await session.door.writes.stream(text_of(words[1])).evict(int_of(words[2]))


def _scope_of_read(words: Words) -> Scope | None:
    """Return that to take messages from a group is a change."""
    return Scope.WRITE if any(word.upper() == b"GROUP" for word in words[4:]) else None


STREAM_COMMANDS: Final = (
    RespCommand("TWRITE", -4, Scope.WRITE, -1, "stream",
                "key tag entry | key [BACKLOG count] [PRODUCER name sequence] "
                "[HEADERS pairs name value [name value ...]] ENTRIES tag entry [tag entry ...]",
                "Appends entries, all or none; returns the offset of the first.", twrite),
    RespCommand("TREAD", -4, Scope.READ, -1, "stream",
                "key offset count [BLOCK milliseconds] [GROUP group] [RETRY retry-ms expire-ms] "
                "[START FIRST|LAST|offset] [MAXPENDING n] [DEADLETTERS] [ORDERED] "
                "[WITHATTEMPT] [WITHHEADERS] [WITHINFO]",
                "Returns messages from an offset on, or those that a group delivers.", tread,
                blocking=True, wider=_scope_of_read),
    RespCommand("TEVICT", 3, Scope.ADMIN, -1, "stream", "key offset",
                "Removes messages up to an offset, or all but the newest -offset.", tevict,
                look=look_at_stream),
)  # fmt: skip
