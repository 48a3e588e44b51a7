"""Commands of topics: what those of streams and groups are, over all partitions.

A message is named by its partition and its offset in it, `3:17`. The partitions are streams as
well, `rides/3`, from which TREAD reads without a group.
"""

from __future__ import annotations

from typing import Any, Final

from headwater.doors.catalogue import TOPIC_GROUP
from headwater.errors import UnknownTopic
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES
from headwater.log.aio_topic import AsyncTopic, AsyncTopicGroup
from headwater.log.reading import partitions_of
from headwater.log.types import TopicMessage
from headwater.serve.listing import letters_of_topic
from headwater.serve.resp.arguments import (
    Arguments,
    int_of,
    text_of,
    topic_read_options,
    write_options,
)
from headwater.serve.resp.commands import RespCommand, Words
from headwater.serve.resp.derived import commands_of
from headwater.serve.resp.door import RespSession
from headwater.serve.resp.group_commands import count_of, letter_row, letters_asked
from headwater.serve.resp.replies import group_facts, stream_facts


async def known_topic(session: RespSession, name: str) -> AsyncTopic[Any]:
    """Return a topic; raises UnknownTopic for one that is not there."""
    topic = session.door.client.topic(name)
    if not await session.door.client.store.run(partitions_of(name)):
        raise UnknownTopic(name)
    return topic


async def tpcreate(session: RespSession, words: Words) -> int:
    """TPCREATE: create a topic with this many partitions."""
    return await session.door.client.topic(text_of(words[1]), int_of(words[2])).partitions()


async def tpwrite(session: RespSession, words: Words) -> list[Any]:
    """TPWRITE: append entries, each to the partition of its tag."""
    asked = write_options(words)
    if asked.alone:
        written = await session.door.topic_writes.write(asked.name, asked.entries, asked.size)
    else:
        written = await session.door.client.topic(asked.name).write_many(
            asked.entries,
            backlog=asked.backlog,
            producer=asked.producer,
            sequence=asked.sequence,
        )
    if len(words) == 4:
        ((place, offsets),) = written.items()
        return [place, offsets[0]]
    return [[place, offsets[0], offsets[-1]] for place, offsets in sorted(written.items())]


async def tpread(session: RespSession, words: Words) -> list[list[Any]]:
    """TPREAD: take messages of any partition as a member of a group."""
    options = topic_read_options(words)
    assert options.group is not None
    async with session.door.at_store:
        topic = await known_topic(session, options.stream)
    group = topic.group(
        options.group,
        options.start,
        member=session.name or None,
        max_pending=options.max_pending,
        dead_letters=options.dead_letters,
        ordered=options.ordered,
    )

    async def read(block_ms: float) -> list[TopicMessage[Any]]:
        return await group.read(
            options.count,
            block_ms=block_ms,
            ack_ms=options.retry_ms,
            expire_ms=options.expire_ms,
            max_bytes=LIST_BYTES,
        )

    if options.block_ms and options.count:
        place = ("topic", options.stream, options.group)
        with session.may_wait():
            found = await session.door.waiting.in_turn(place, options.block_ms, read)
    else:
        async with session.door.at_store:
            found = await read(0)
    rows: list[list[Any]] = []
    for one in found:
        row: list[Any] = [one.partition, one.offset, one.tag, one.value]
        if options.with_attempt:
            row.append(one.attempt)
        if options.with_headers:
            row.append(dict(one.headers))
        rows.append(row)
    return rows


async def _group(session: RespSession, arguments: Arguments) -> AsyncTopicGroup[Any]:
    topic = await known_topic(session, arguments.text())
    return topic.group(arguments.text(), member=session.name or None)


async def tpdead(session: RespSession, words: Words) -> list[Any]:
    """TPDEAD: return dead letters."""
    arguments = Arguments(words)
    topic, group = arguments.text(), arguments.text()
    asked = letters_asked(arguments)
    await known_topic(session, topic)
    found = await letters_of_topic(session.door.client, topic, group, asked.most, asked.start)
    rows: list[Any] = [[letter.partition, *letter_row(letter)] for letter in found.items]
    return [found.next, *rows] if asked.with_next else rows


async def tpredrive(session: RespSession, words: Words) -> list[list[int]]:
    """TPREDRIVE: have dead letters redelivered."""
    arguments = Arguments(words)
    group = await _group(session, arguments)
    if arguments:
        done = await group.redrive(count_of(arguments, 0))
    else:
        done = await group.redrive()
    return [[place, *part] for place, part in sorted(done.items())]


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


async def tpdel(session: RespSession, words: Words) -> int:
    """TPDEL: remove a topic with all its streams."""
    try:
        topic = await known_topic(session, text_of(words[1]))
    except UnknownTopic:
        return 0
    return int(await topic.delete())


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
    RespCommand("TPDEAD", -3, Scope.READ, -1, _P,
                "key group [COUNT count] [FROM place] [WITHNEXT]",
                "Returns the oldest dead letters, no more once they have 4 MiB: [[partition, "
                "offset, tag, entry, attempts, buried-ms, cause], ...]. WITHNEXT has the place "
                "before them from which the next list goes on, or null.", tpdead),
    RespCommand("TPREDRIVE", -3, Scope.ADMIN, -1, _P, "key group [COUNT count]",
                "Redrives dead letters; returns [[partition, how many, how many are gone], ...].",
                tpredrive, look=look_at_topic_group),
    RespCommand("TPINFO", -2, Scope.READ, -1, _P, "key [GROUP group]",
                "Returns the state of each partition, or of a group in each of them.", tpinfo),
    RespCommand("TPDEL", 2, Scope.ADMIN, -1, _P, "key",
                "Removes a topic with all its streams and groups; returns whether there was one.",
                tpdel, look=look_at_topic),
    *commands_of(TOPIC_GROUP, look_at_topic_group),
)  # fmt: skip
