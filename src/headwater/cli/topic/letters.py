"""Dead letters of a topic's group: look at them, return them to the group, forget them."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater import views
from headwater.cli import options, output
from headwater.cli.letter_options import (
    AtRate,
    BuriedAfter,
    BuriedBefore,
    MinAttempts,
    WithError,
    WithTag,
    check_one_choice,
    letter_filter,
)
from headwater.cli.message_options import AtMost
from headwater.cli.options import AsJson, Count, GroupName, StoreUrl, TopicName, Yes, confirm
from headwater.cli.stream.letters import show_letters
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


def dead(
    name: TopicName,
    group: GroupName,
    count: Count = 100,
    tag: WithTag = None,
    error: WithError = None,
    min_attempts: MinAttempts = None,
    after: BuriedAfter = None,
    before: BuriedBefore = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the oldest dead letters of a group: the messages that it gave up."""
    matching = letter_filter(error, min_attempts, after, before, tag)
    with known_group(store, name, group) as found:
        letters = found.dead(count, matching=matching)
        facts = found.info()
        keeps = next((info.dead_letters for info in facts if info.dead_letters), None)
    show_letters(letters, group, keeps, sum(info.pending for info in facts), as_json)


def redrive(
    name: TopicName,
    group: GroupName,
    offsets: _Named = None,
    count: AtMost = None,
    tag: WithTag = None,
    error: WithError = None,
    min_attempts: MinAttempts = None,
    after: BuriedAfter = None,
    before: BuriedBefore = None,
    rate: AtRate = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Return dead letters to the group; their attempts are counted from 1 again."""
    parsed = options.in_topic(offsets) if offsets else None
    matching = letter_filter(error, min_attempts, after, before, tag)
    check_one_choice(parsed, matching)
    with known_group(store, name, group) as found:
        most = MAX_READ if count is None else count
        done = found.redrive(most, letters=parsed, matching=matching, rate_per_s=rate)
    gone = sum(part.gone for part in done.values())
    lost = f"; {gone} stay, because the topic no longer holds them" if gone else ""
    if as_json:
        output.show_json(
            *(
                views.streams.TopicRedrivenView.of(part, topic=name, group=group, partition=place)
                for place, part in done.items()
            )
        )
    else:
        output.say(f"given back {sum(part.returned for part in done.values())}{lost}")


def discard(
    name: TopicName,
    group: GroupName,
    offsets: _Named = None,
    count: AtMost = None,
    tag: WithTag = None,
    error: WithError = None,
    min_attempts: MinAttempts = None,
    after: BuriedAfter = None,
    before: BuriedBefore = None,
    rate: AtRate = None,
    yes: Yes = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Discard dead letters; asks before it discards all. Their streams keep them by retention."""
    parsed = options.in_topic(offsets) if offsets else None
    matching = letter_filter(error, min_attempts, after, before, tag)
    check_one_choice(parsed, matching)
    with known_group(store, name, group) as found:
        if parsed is None and count is None:
            all_dead = sum(info.dead for info in found.info())
            fitting = " that fit" if matching else ""
            confirm(f"Forget all dead letters of {group}{fitting}, of {all_dead}?", yes)
        most = MAX_LETTERS if count is None else count
        done = found.discard(parsed, count=most, matching=matching, rate_per_s=rate)
    view = views.streams.TopicLettersDiscardedView(topic=name, group=group, discarded=done)
    output.answer(view, f"discarded: {done}", as_json)
