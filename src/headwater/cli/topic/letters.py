"""Dead letters of a topic's group: look at them, return them to the group, forget them."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater import views
from headwater.cli import options, output
from headwater.cli.letter_options import AtMost, AtRate, LetterFlags, WithTag
from headwater.cli.letter_output import confirm_all, redriven_text, show_letters
from headwater.cli.option_groups import grouped
from headwater.cli.options import AsJson, Count, GroupName, StoreUrl, TopicName, Yes
from headwater.cli.topic.upkeep import known_group

_Named = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="OFFSET...",
        help="Partitions and offsets of the messages (origin), as 3:5, and ranges, as 3:5-9; "
        "without any, all.",
    ),
]


@grouped
def dead(
    *,
    name: TopicName,
    group: GroupName,
    count: Count = 100,
    tag: WithTag = None,
    fitting: LetterFlags,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the oldest dead letters of a group: the messages that it gave up."""
    matching = fitting.filter(tag)
    with known_group(store, name, group) as found:
        letters = found.dead(count, matching=matching)
        state = found.info()
    show_letters(letters, group, state, as_json)


@grouped
def redrive(
    *,
    name: TopicName,
    group: GroupName,
    offsets: _Named = None,
    count: AtMost = None,
    tag: WithTag = None,
    fitting: LetterFlags,
    rate: AtRate = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Return dead letters to the group; their attempts are counted from 1 again."""
    parsed = options.in_topic(offsets) if offsets else None
    chosen = fitting.arguments(parsed, count, rate, tag)
    with known_group(store, name, group) as found:
        done = found.redrive(**chosen)
    if as_json:
        output.show_json(
            *(
                views.streams.TopicRedrivenView.of(part, topic=name, group=group, partition=place)
                for place, part in done.items()
            )
        )
    else:
        output.say(redriven_text(done.values(), "topic"))


@grouped
def discard(
    *,
    name: TopicName,
    group: GroupName,
    offsets: _Named = None,
    count: AtMost = None,
    tag: WithTag = None,
    fitting: LetterFlags,
    rate: AtRate = None,
    yes: Yes = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Discard dead letters; asks before it discards all. Their streams keep them by retention."""
    parsed = options.in_topic(offsets) if offsets else None
    chosen = fitting.arguments(parsed, count, rate, tag)
    with known_group(store, name, group) as found:
        if parsed is None and count is None:
            all_dead = sum(info.dead for info in found.info())
            confirm_all("Forget", group, all_dead, chosen["matching"], yes)
        done = found.discard(**chosen)
    view = views.streams.TopicLettersDiscardedView(topic=name, group=group, discarded=done)
    output.answer(view, f"discarded: {done}", as_json)
