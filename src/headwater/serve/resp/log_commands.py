"""Commands of streams, topics and their groups."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, Final

from headwater.doors.catalogue import GROUP, STREAM, TOPIC, TOPIC_GROUP
from headwater.errors import UnknownStream
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES
from headwater.log.aio_stream import AsyncLog, AsyncStream, Range
from headwater.log.aio_topic import AsyncTopic
from headwater.log.reading import read_runs
from headwater.serve.resp.arguments import (
    Arguments,
    ReadOptions,
    WriteOptions,
    int_of,
    read_options,
    text_of,
    topic_read_options,
    write_options,
)
from headwater.serve.resp.commands import RespCommand, Words, Write
from headwater.serve.resp.derived import commands_of
from headwater.serve.resp.door import Door, RespSession
from headwater.serve.resp.replies import (
    EncodedReply,
    MessageForm,
    encode_array,
    group_facts,
    spell_messages,
    spell_runs,
    stream_facts,
)


async def _taken(
    session: RespSession, source: AsyncStream | AsyncTopic[Any], options: ReadOptions
) -> tuple[list[Any], tuple[int, int] | None]:
    """Take messages as a member of a group; returns them, and the bounds that were asked for."""
    assert options.group is not None
    group: Any = source.group(
        options.group,
        options.start,
        member=session.name or None,
        max_pending=options.max_pending,
        dead_letters=options.dead_letters,
        ordered=options.ordered,
    )
    bounds: tuple[int, int] | None = None

    async def read(block_ms: float) -> list[Any]:
        nonlocal bounds
        found = await group.read(
            options.count,
            block_ms=block_ms,
            ack_ms=options.retry_ms,
            expire_ms=options.expire_ms,
            with_info=options.with_info,
            max_bytes=LIST_BYTES,
        )
        if options.with_info:
            found, *edges = found
            bounds = edges[0], edges[1]
        messages: list[Any] = found
        return messages

    if options.block_ms and options.count:
        line = (type(source), options.stream, options.group)
        with session.may_wait():
            messages = await session.door.waiting.in_turn(line, options.block_ms, read)
        if options.with_info and bounds is None:
            # Its turn did not come in time.
            messages = await read(0)
    else:
        async with session.door.at_store:
            messages = await read(0)
    return messages, bounds


async def read_group(
    session: RespSession, stream: AsyncStream, options: ReadOptions
) -> EncodedReply:
    """Take messages as a member of a group; the offset is ignored."""
    messages, bounds = await _taken(session, stream, options)
    form = MessageForm(session.protocol, options.with_attempt, options.with_headers)
    return EncodedReply(encode_array(len(messages), spell_messages(messages, form), bounds))


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


_STEP: Final = 1000


def twrite(session: RespSession, words: Words) -> Write | Awaitable[int]:
    """TWRITE: append one entry, or several."""
    asked = write_options(words)
    if asked.alone:
        return Write(asked.name, asked.entries, asked.size)
    return _first(_written(session.door.writes.stream(asked.name), asked))


async def _first(written: Awaitable[range]) -> int:
    return (await written).start


async def _written(target: AsyncLog[Any, Range, Any], asked: WriteOptions) -> Range:
    return await target.write_many(
        asked.entries,
        backlog=asked.backlog,
        producer=asked.producer,
        sequence=asked.sequence,
    )


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
    *commands_of(STREAM, look_at_stream),
)  # fmt: skip


# Commands of topics: what those of streams and groups are, over all partitions.
#
# A message is named by its partition and its offset in it, `3:17`. The partitions are streams as
# well, `rides/3`, from which TREAD reads without a group.


async def known_topic(session: RespSession, name: str) -> AsyncTopic[Any]:
    """Return a topic; raises UnknownTopic for one that is not there."""
    client = session.door.client
    assert TOPIC.check is not None
    await client.store.run(TOPIC.check(name))
    return client.topic(name)


async def tpcreate(session: RespSession, words: Words) -> int:
    """TPCREATE: create a topic with this many partitions."""
    return await session.door.client.topic(text_of(words[1]), int_of(words[2])).partitions()


async def tpwrite(session: RespSession, words: Words) -> list[Any]:
    """TPWRITE: append entries, each to the partition of its tag."""
    asked = write_options(words)
    if asked.alone:
        written = await session.door.topic_writes.write(asked.name, asked.entries, asked.size)
    else:
        written = await _written(session.door.client.topic(asked.name), asked)
    if len(words) == 4:
        ((partition, offsets),) = written.items()
        return [partition, offsets[0]]
    return [[partition, offsets[0], offsets[-1]] for partition, offsets in sorted(written.items())]


async def tpread(session: RespSession, words: Words) -> list[list[Any]]:
    """TPREAD: take messages of any partition as a member of a group."""
    options = topic_read_options(words)
    async with session.door.at_store:
        topic = await known_topic(session, options.stream)
    messages, _ = await _taken(session, topic, options)
    rows: list[list[Any]] = []
    for message in messages:
        row: list[Any] = [message.partition, message.offset, message.tag, message.value]
        if options.with_attempt:
            row.append(message.attempt)
        if options.with_headers:
            row.append(dict(message.headers))
        rows.append(row)
    return rows


async def tpinfo(session: RespSession, words: Words) -> list[dict[str, Any]]:
    """TPINFO: return where each partition stands, or a group in each of them."""
    arguments = Arguments(words)
    topic = await known_topic(session, arguments.text())
    if not arguments.take_option("GROUP"):
        arguments.end()
        return [stream_facts(one) for one in await topic.info()]
    group = topic.group(arguments.text())
    arguments.end()
    return [group_facts(one) for one in await group.info()]


async def look_at_topic(session: RespSession, words: Words) -> Any:
    """Return where the topic of a command stands."""
    return await tpinfo(session, [b"TPINFO", words[1]])


async def look_at_topic_group(session: RespSession, words: Words) -> Any:
    """Return where the group of a command stands."""
    return await tpinfo(session, [b"TPINFO", words[1], b"GROUP", words[2]])


_P = "topic"
TOPIC_COMMANDS: Final = (
    RespCommand("TPCREATE", 3, Scope.WRITE, -1, _P, "key partitions",
                "Creates a topic; returns how many partitions it has. One that exists with another "
                "number is refused.", tpcreate),
    RespCommand("TPWRITE", -4, Scope.WRITE, -1, _P,
                "key tag entry | key [BACKLOG count] [PRODUCER name sequence] "
                "[HEADERS pairs name value [name value ...]] ENTRIES tag entry [tag entry ...]",
                "Appends entries, each to the partition of its tag; returns [partition, offset], "
                "or with ENTRIES [[partition, first, last], ...].", tpwrite),
    RespCommand("TPREAD", -4, Scope.WRITE, -1, _P,
                "key group count [BLOCK milliseconds] [RETRY retry-ms expire-ms] "
                "[START FIRST|LAST|offset] [MAXPENDING n] [DEADLETTERS] [ORDERED] "
                "[WITHATTEMPT] [WITHHEADERS]",
                "Takes messages of any partition as a member of a group: "
                "[[partition, offset, tag, entry], ...].", tpread, blocking=True),
    RespCommand("TPINFO", -2, Scope.READ, -1, _P, "key [GROUP group]",
                "Returns the state of each partition, or of a group in each of them.", tpinfo),
    *commands_of(TOPIC, look_at_topic),
    *commands_of(TOPIC_GROUP, look_at_topic_group),
)  # fmt: skip
