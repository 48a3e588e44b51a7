"""What commands on dead letters print and ask: of streams, of topics and of queues."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from headwater import views
from headwater.cli import output
from headwater.cli.options import confirm

if TYPE_CHECKING:
    from headwater.kernel.failures import LetterFilter
    from headwater.log.types import DeadLetter, GroupInfo, Redriven, TopicDeadLetter


def show_letters(
    letters: Sequence[DeadLetter | TopicDeadLetter],
    group: str,
    state: Sequence[GroupInfo],
    as_json: bool,
) -> None:
    """Print dead letters of a group; ``state`` is its state in the stream, or in each partition."""
    nothing = "no dead letters"
    if not any(info.dead_letters for info in state):
        nothing = f"{group} keeps no dead letters"
    elif pending := sum(info.pending for info in state):
        nothing += (
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
        nothing=nothing,
    )


def redriven_text(done: Collection[Redriven], source: str) -> str:
    """Return how many dead letters a group has back, and how many stay, of all partitions."""
    returned, gone = sum(part.returned for part in done), sum(part.gone for part in done)
    lost = f"; {gone} stay, because the {source} no longer holds them" if gone else ""
    return f"given back {returned}{lost}"


def confirm_all(deed: str, whose: str, dead: int, matching: LetterFilter | None, yes: bool) -> None:
    """Ask before all dead letters of a group or a queue are removed, or all that fit."""
    confirm(f"{deed} all dead letters of {whose}{' that fit' if matching else ''}, of {dead}?", yes)
