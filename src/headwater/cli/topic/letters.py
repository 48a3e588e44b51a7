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
from headwater.cli.topic.groups import known_group
from headwater.log.limits import MAX_LETTERS, MAX_READ

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
    matching = fitting.filter(tag, named=parsed)
    with known_group(store, name, group) as found:
        most = MAX_READ if count is None else count
        done = found.redrive(most, letters=parsed, matching=matching, rate_per_s=rate)
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
    matching = fitting.filter(tag, named=parsed)
    with known_group(store, name, group) as found:
        if parsed is None and count is None:
            confirm_all("Forget", group, sum(info.dead for info in found.info()), matching, yes)
        most = MAX_LETTERS if count is None else count
        done = found.discard(parsed, count=most, matching=matching, rate_per_s=rate)
    view = views.streams.TopicLettersDiscardedView(topic=name, group=group, discarded=done)
    output.answer(view, f"discarded: {done}", as_json)
