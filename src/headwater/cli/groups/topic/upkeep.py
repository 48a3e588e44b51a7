"""Topics and their groups: which there are, and how they stand by partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from headwater import views
from headwater.cli import completing, options, output
from headwater.cli.derived import answer, taking
from headwater.cli.groups.stream.upkeep import Apply, Forever, change_retention, check_retention
from headwater.cli.options import (
    AsJson,
    GroupName,
    GroupSettings,
    OnePartition,
    StoreUrl,
    TopicName,
    connected,
    grouped,
    known_topic,
    similar,
    topic_of,
)
from headwater.cli.output import GROUP_COLUMNS, NO_GROUPS, terms_text
from headwater.doors.catalogue import TOPIC, TOPIC_GROUP
from headwater.errors import UnknownGroup

if TYPE_CHECKING:
    from headwater.log.topic import Topic, TopicGroup
    from headwater.log.types import GroupInfo, StreamInfo


def create(
    name: TopicName,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, metavar="N", help="How many.", show_default="8"),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Create a topic; the number of its partitions does not change afterwards.

    A topic that exists is left as it is, and refused if it has another number of partitions.
    """
    with connected(store) as hw:
        has = hw.topic(name, partitions).partitions()
    done = views.streams.TopicCreatedView(topic=name, partitions=has)
    output.answer(done, f"{name} has {has} partitions", as_json)


def list_topics(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List all topics."""
    with connected(store) as hw:
        found = hw.store.run(views.overview.all_topics())
    output.show_list(
        found,
        lambda topic: views.streams.TopicView.of(*topic),
        {
            "topic": lambda topic: topic.topic,
            "partitions": lambda topic: len(topic.partitions),
            "messages": lambda topic: sum(facts.length for facts in topic.partitions),
            "size": lambda topic: output.size_text(sum(facts.bytes for facts in topic.partitions)),
            "groups": lambda topic: len(_groups(topic.partitions)),
            "newest message": lambda topic: output.time_text(
                max(facts.last_time_ms for facts in topic.partitions)
            ),
        },
        as_json,
        nothing="no topics: a topic is created by its first use, or by topic create",
    )


def info(name: TopicName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show where each partition of a topic stands."""
    with known_topic(store, name) as topic:
        partitions = topic.info()
    if as_json:
        output.show_json(views.streams.TopicView.of(name, partitions))
        return
    output.show_table(
        ["partition", "first", "last", "messages", "size", "groups", "newest message"],
        [
            (
                *(number, facts.first, facts.last, facts.length, output.size_text(facts.bytes)),
                *(len(facts.groups), output.time_text(facts.last_time_ms)),
            )
            for number, facts in enumerate(partitions)
        ],
    )


@taking(TOPIC, "retain")
def retain(
    name: TopicName,
    forever: Forever = False,
    apply: Apply = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Show how much is kept of each partition; or set it, by any limit, and apply it.

    See `headwater stream retain`. Each limit holds for every partition by itself.
    """
    check_retention(given, forever, apply)
    with known_topic(store, name) as topic:
        change_retention(TOPIC, topic, lambda: topic.info()[0], given, forever, apply, as_json)


def _groups(partitions: list[StreamInfo]) -> set[str]:
    """Return the groups that any partition has."""
    return {group for facts in partitions for group in facts.groups}


class _GroupRow(NamedTuple):
    topic: str
    partition: int
    group: GroupInfo


@contextmanager
def known_group(url: str | None, name: str, group: str) -> Iterator[TopicGroup]:
    """Open a group that exists, in the block."""
    with known_topic(url, name) as topic:
        try:
            yield topic.group(group)
        except UnknownGroup as error:
            known = _groups_of(topic)
            found = UnknownGroup(error.stream, group, similar(group, known - {group}), name)
            if group in known:
                found.partition, found.partitions_done = error.partition, error.partitions_done
            raise found from None


def _groups_of(topic: Topic) -> set[str]:
    """Return the names of the groups of any partition."""
    return {name for facts in topic.info() for name in facts.groups}


def list_groups(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC",
            help="One topic only.",
            show_default=False,
            autocompletion=completing.topics,
        ),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show where every group stands in each partition, of one topic or of all."""
    with connected(store) as hw:
        if name:
            topics = [views.overview.TopicStreams(name, topic_of(hw, name).info())]
        else:
            topics = hw.store.run(views.overview.all_topics())
        numbers = {
            facts.name: (topic.topic, number)
            for topic in topics
            for number, facts in enumerate(topic.partitions)
        }
        streams = [facts for topic in topics for facts in topic.partitions]
        found = hw.store.run(views.overview.groups_of(streams))
    rows = [_GroupRow(*numbers[row.stream], row.group) for row in found]
    rows.sort(key=lambda row: (row.topic, row.group.name, row.partition))
    whose: dict[str, Callable[[Any], object]] = {"topic": lambda row: row.topic}
    columns = {
        "group": GROUP_COLUMNS["group"],
        "partition": lambda row: row.partition,
        **GROUP_COLUMNS,
    }
    output.show_list(
        rows,
        _group_view,
        columns if name else whose | columns,
        as_json,
        nothing=NO_GROUPS,
    )


@grouped
def set_group(
    name: TopicName,
    group: GroupName,
    wanted: GroupSettings,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Create a group with --start, or change how it delivers, and what it does with dead letters.

    It is set in every partition; settings that are not named stay as they are.
    """
    arguments = wanted.arguments()
    with known_topic(store, name) as topic:
        wanted.check(f"topic {name!r}", group, _groups_of(topic))
        found = topic.group(group, **arguments)
        found.read(0)
        partitions = found.info()
    output.show_list(
        [_GroupRow(name, number, facts) for number, facts in enumerate(partitions)],
        _group_view,
        {
            "partition": lambda row: row.partition,
            "next": lambda row: row.group.next,
            "settings": lambda row: terms_text(row.group),
        },
        as_json,
        nothing="",
    )


def _group_view(row: _GroupRow) -> Any:
    return views.streams.TopicGroupView.of(row.group, topic=row.topic, partition=row.partition)


def seek(
    name: TopicName,
    group: GroupName,
    to: Annotated[
        str,
        typer.Argument(
            metavar="TO",
            help="first, last, or a time like 2030-01-31T12:00:00Z; -1000 or +1000: so many "
            "messages back or on in each partition; with --partition an offset.",
        ),
    ],
    partition: OnePartition = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Set the position of a group in all partitions or in one: earlier messages are skipped."""
    sought = options.target(to)
    if partition is None and isinstance(sought, int):
        raise typer.BadParameter("an offset is one of a partition; give --partition with it")
    with known_group(store, name, group) as found:
        here = {number: facts.next for number, facts in enumerate(found.info())}
        chosen = here if partition is None else {partition: here.get(partition, 1)}
        offsets = found.seek(
            {number: options.from_here(sought, at) for number, at in chosen.items()}
        )
    answer(TOPIC_GROUP.operation("seek"), (name, group), offsets, as_json)
