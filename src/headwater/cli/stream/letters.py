"""Dead letters of a group: look at them, return them to the group, forget them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

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
from headwater.cli.options import AsJson, Count, GroupName, StoreUrl, StreamName, Yes, confirm
from headwater.cli.stream.groups import known_group
from headwater.log.limits import MAX_LETTERS, MAX_READ

if TYPE_CHECKING:
    from headwater.log.types import DeadLetter, TopicDeadLetter

_Named = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="OFFSET...",
        help="Offsets of the messages (origin), as 5, and ranges, as 5-9; without any, all.",
    ),
]


def dead(
    name: StreamName,
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
        info = found.info()
    show_letters(letters, group, info.dead_letters, info.pending, as_json)


def show_letters(
    letters: Sequence[DeadLetter | TopicDeadLetter],
    group: str,
    keeps: str | None,
    pending: int,
    as_json: bool,
) -> None:
    """Print dead letters of a group; ``keeps`` is the stream in which it has them, if any."""
    none = "no dead letters"
    if pending:
        none += (
            f"; of {output.counted(pending, 'pending message')}, one that has expired becomes a "
            "dead letter with the next read of the group, or by headwater keep"
        )
    partition: dict[str, Callable[[Any], object]] = {"partition": lambda letter: letter.partition}
    headers: dict[str, Callable[[Any], object]] = {
        "headers": lambda letter: output.headers_text(letter.headers)
    }
    output.show_list(
        letters,
        views.streams.DeadLetterView.of,
        (partition if any(hasattr(one, "partition") for one in letters) else {})
        | {
            "origin": lambda letter: letter.origin,
            "attempts": lambda letter: letter.attempts,
            "buried": lambda letter: output.time_text(letter.buried_ms),
        }
        # What may be long comes last and wraps; the columns before it are shown whole.
        | {"tag": lambda letter: letter.tag}
        | (headers if any(one.headers for one in letters) else {})
        | {
            "value": lambda letter: letter.value,
            "cause": lambda letter: letter.cause and str(letter.cause),
        },
        as_json,
        fold=3 + any(one.headers for one in letters),
        nothing=none if keeps else f"{group} keeps no dead letters",
    )


def redrive(
    name: StreamName,
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
    parsed = options.offsets(offsets) if offsets else None
    matching = letter_filter(error, min_attempts, after, before, tag)
    check_one_choice(parsed, matching)
    most = MAX_READ if count is None else count
    with known_group(store, name, group) as found:
        done = found.redrive(most, letters=parsed, matching=matching, rate_per_s=rate)
    lost = f"; {done.gone} stay, because the stream no longer holds them" if done.gone else ""
    output.answer(
        views.streams.RedrivenView.of(done, stream=name, group=group),
        f"given back {done.returned}{lost}",
        as_json,
    )


def discard(
    name: StreamName,
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
    """Discard dead letters; asks before it discards all. Their stream keeps them by retention."""
    parsed = options.offsets(offsets) if offsets else None
    matching = letter_filter(error, min_attempts, after, before, tag)
    check_one_choice(parsed, matching)
    with known_group(store, name, group) as found:
        if parsed is None and count is None:
            fitting = " that fit" if matching else ""
            confirm(f"Forget all dead letters of {group}{fitting}, of {found.info().dead}?", yes)
        most = MAX_LETTERS if count is None else count
        done = found.discard(parsed, count=most, matching=matching, rate_per_s=rate)
    view = views.streams.LettersDiscardedView(stream=name, group=group, discarded=done)
    output.answer(view, f"discarded: {done}", as_json)
