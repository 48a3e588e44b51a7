"""Messages in and out of a topic: write, read, tail."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from headwater import views
from headwater.cli import line_input, output
from headwater.cli.groups.stream.messages import FOLLOW_MS, PAGE
from headwater.cli.options import (
    AsJson,
    NewestLines,
    OnePartition,
    ReadFlags,
    StopAfter,
    StoreUrl,
    TopicName,
    WriteFlags,
    connected,
    grouped,
    interruptible,
    known_topic,
    topic_of,
)
from headwater.cli.output import (
    TOPIC_FIELDS,
    Found,
    TopicLineFormat,
    check_format,
    show_each,
    show_page,
)

if TYPE_CHECKING:
    from headwater.client import Headwater
    from headwater.log.topic import Topic


@grouped
def write(
    name: TopicName,
    given: WriteFlags,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write one message, TAG and VALUE; or, without them, a message for each line of stdin.

    Each message goes to the partition of its tag. Lines are written as they arrive, in batches that
    are atomic within each partition. It prints partitions with offsets, as 3:5.
    """
    given.check()
    with connected(store) as hw, interruptible():
        line_input.write_given(hw.topic(name), given, as_json)


@grouped
def read(
    *,
    name: TopicName,
    partition: OnePartition = None,
    wanted: ReadFlags,
    line_format: TopicLineFormat = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Read messages, partition by partition, which changes nothing; or take them as a member.

    Without --ack-ms, a message that a group's member took counts as acknowledged. --offset is an
    offset within a partition; --block-ms needs --partition or --group.
    """
    wanted.check()
    if wanted.group is not None and (wanted.offset is not None or partition is not None):
        raise typer.BadParameter("--group excludes --partition and --offset; see `topic seek`")
    if wanted.offset is not None and partition is None:
        raise typer.BadParameter("--offset needs --partition")
    if wanted.block_ms and wanted.group is None and partition is None:
        raise typer.BadParameter("--block-ms needs --partition or --group")
    form = check_format(line_format, as_json, TOPIC_FIELDS)
    with known_topic(store, name) as topic:
        if wanted.group is not None:
            show_page(wanted.take(topic.group(wanted.group)), as_json, form)
            return
        found: list[Found] = []
        left = wanted.count
        for number in range(topic.partitions()) if partition is None else (partition,):
            at = topic.partition(number).info().first if wanted.offset is None else wanted.offset
            page, end = _read(topic, number, at, left, wanted.block_ms)
            found += page
            left -= end - at
    if found:
        show_page(found, as_json, form)
    elif wanted.count:
        output.warn("nothing there; `topic info` shows what the partitions hold")


def tail(
    name: TopicName,
    last: NewestLines = None,
    count: StopAfter = None,
    line_format: TopicLineFormat = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the newest messages, then each new one as it arrives, until Ctrl-C or SIGTERM.

    Either signal ends it with exit code 0, and so does the end of the program that reads its
    output. The newest messages of different partitions are in the order of their times.
    """
    form = check_format(line_format, as_json, TOPIC_FIELDS)
    left = sys.maxsize if count is None else count
    begin = min(10, left) if last is None else last
    with connected(store) as hw, suppress(KeyboardInterrupt), interruptible():
        from headwater.log.types import TopicMessage

        topic = topic_of(hw, name)
        facts = topic.info()
        newest: list[TopicMessage] = []
        for number, each in enumerate(facts):
            page, _ = _read(topic, number, max(each.first, each.last - begin + 1), begin, 0)
            newest += [one for one in page if isinstance(one, TopicMessage)]
        newest.sort(key=lambda message: message.time_ms)
        newest = newest[max(0, len(newest) - begin) :][:left]
        show_each(newest, as_json, form)
        left -= len(newest)
        at = [each.last + 1 for each in facts]
        while left and output.is_read():
            for number in _await_news(hw, topic, at):
                page, end = _read(topic, number, at[number], min(left, PAGE), 1)
                show_each(page, as_json, form)
                left -= sum(not isinstance(one, views.streams.GoneView) for one in page)
                at[number] = end


def _read(topic: Topic, number: int, at: int, count: int, block_ms: int) -> tuple[list[Found], int]:
    """Read from a partition; returns what was found, and the offset behind it."""
    from headwater.log.topics import in_partition

    found: list[Found] = []
    start, end = at, at + count
    while at < end:
        page = topic.partition(number).read(
            at, min(end - at, PAGE), block_ms=0 if at > start else block_ms
        )
        if not page:
            break
        for one in views.streams.messages_and_gaps(page, at, number):
            if isinstance(one, views.streams.GoneView):
                found.append(one)
            else:
                found += in_partition(number, [one])
        at += len(page)
    return found, at


def _await_news(hw: Headwater, topic: Topic, at: list[int]) -> list[int]:
    """Wait for messages from offsets on; returns the partitions that have some."""
    from headwater.log.handles import StreamHandle
    from headwater.log.topics import TURN_MS, await_news

    ends = [
        (StreamHandle(f"{topic.name}/{number}", set()), one - 1) for number, one in enumerate(at)
    ]
    if hw.store.kind == "cluster":
        # Streams in different slots cannot be waited for together: take turns.
        woken = [name for end in ends for name in hw.store.run(await_news([end], TURN_MS))]
    else:
        woken = hw.store.run(await_news(ends, FOLLOW_MS))
    return [number for number, (stream, _) in enumerate(ends) if stream.name in woken]
