"""Topics as a whole: which there are, and how their partitions stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.options import AsJson, StoreUrl, TopicName, connected, known_topic

if TYPE_CHECKING:
    from headwater.log.types import StreamInfo


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
                *(place, facts.first, facts.last, facts.length, output.size_text(facts.bytes)),
                *(len(facts.groups), output.time_text(facts.last_time_ms)),
            )
            for place, facts in enumerate(partitions)
        ],
    )


def _groups(partitions: list[StreamInfo]) -> set[str]:
    """Return the groups that any partition has."""
    return {group for facts in partitions for group in facts.groups}
