"""Commands on dead letters: of a group, of a group over a topic, of a queue, and of all of them.

Each is written once; ``add_letter_commands`` gives it the words of a kind of object.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from headwater import views
from headwater.cli import completing, options, output
from headwater.cli.options import (
    AsJson,
    Count,
    GroupName,
    OptionGroup,
    StoreUrl,
    StreamName,
    TopicName,
    Yes,
    confirm,
    connected,
    grouped,
    point_in_time,
    similar,
)
from headwater.doors.catalogue import GROUP, QUEUE, TOPIC_GROUP, Kind
from headwater.errors import InvalidInput
from headwater.kernel.failures import LetterFilter
from headwater.store.call import MAX_RATE

if TYPE_CHECKING:
    from headwater.client import Headwater
    from headwater.log.types import DeadLetter, GroupInfo, TopicDeadLetter

# ── Which letters ─────────────────────────────────────────────────────────────────────────────────


AtMost = Annotated[
    int | None,
    typer.Option(
        "--count", "-c", min=1, metavar="N", help="At most N dead letters.", show_default="all"
    ),
]
WithTag = Annotated[
    str | None, typer.Option("--tag", help="Only letters whose message has this tag.")
]
WithError = Annotated[
    str | None,
    typer.Option("--error", metavar="TEXT", help="Only letters whose last error has this text."),
]
MinAttempts = Annotated[
    int | None,
    typer.Option(
        "--min-attempts", min=0, metavar="N", help="Only letters that were delivered N times."
    ),
]
BuriedAfter = Annotated[
    str | None,
    typer.Option("--after", metavar="TIME", help="Only letters that were given up from then on."),
]
BuriedBefore = Annotated[
    str | None,
    typer.Option("--before", metavar="TIME", help="Only letters that were given up before then."),
]
AtRate = Annotated[
    int | None,
    typer.Option(
        "--rate",
        min=1,
        max=MAX_RATE,
        metavar="N",
        help="At most N letters a second; Ctrl-C leaves the rest.",
    ),
]


@dataclass(frozen=True)
class LetterFlags(OptionGroup):
    """Which dead letters are meant, by what is known of them; a queue's have no tags."""

    error: WithError = None
    min_attempts: MinAttempts = None
    after: BuriedAfter = None
    before: BuriedBefore = None

    def filter(self, tag: str | None = None) -> LetterFilter | None:
        """Return the filter that options ask for; None when there is none."""
        after, before = _ms(self.after, "--after"), _ms(self.before, "--before")
        found = LetterFilter(tag, self.error, self.min_attempts, after, before)
        return None if found == LetterFilter() else found

    def arguments(
        self, named: object, count: int | None, rate: int | None, tag: str | None = None
    ) -> dict[str, Any]:
        """Return the arguments of ``redrive`` and ``discard``; refuses names beside a filter."""
        matching = self.filter(tag)
        if named and matching is not None:
            raise typer.BadParameter("name letters, or give --tag, --error and the like, not both")
        chosen = {"letters": named, "matching": matching, "rate_per_s": rate}
        return chosen if count is None else chosen | {"count": count}


def _ms(word: str | None, option: str) -> int | None:
    if word is None:
        return None
    return int(point_in_time(word, option).timestamp() * 1000)


# ── Of one group or queue ─────────────────────────────────────────────────────────────────────────


def _offsets_argument(help: str) -> Any:
    return Annotated[list[str] | None, typer.Argument(metavar="OFFSET...", help=help)]


_QueueName = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE",
        help="Name of the queue.",
        show_default=False,
        autocompletion=completing.queues,
    ),
]


class LetterWords(NamedTuple):
    """How commands name an object of a kind, and some of its letters; ``meant`` reads those."""

    kind: Kind
    opened: Callable[..., AbstractContextManager[Any]]
    name: Any
    named: Any
    meant: Callable[[list[str]], Any]


def group_letters(opened: Callable[..., AbstractContextManager[Any]]) -> LetterWords:
    """Return the words for a group of a stream."""
    named = _offsets_argument(
        "Offsets of the messages (origin), as 5, and ranges, as 5-9; without any, all."
    )
    return LetterWords(GROUP, opened, StreamName, named, options.offsets)


def topic_letters(opened: Callable[..., AbstractContextManager[Any]]) -> LetterWords:
    """Return the words for a group over a topic."""
    named = _offsets_argument(
        "Partitions and offsets of the messages (origin), as 3:5, and ranges, as 3:5-9; without "
        "any, all."
    )
    return LetterWords(TOPIC_GROUP, opened, TopicName, named, options.in_topic)


def queue_letters(
    opened: Callable[..., AbstractContextManager[Any]], check_ids: Callable[[list[str]], Any]
) -> LetterWords:
    """Return the words for a queue."""
    argument = typer.Argument(metavar="ID...", help="The dead letters; without any, all of them.")
    return LetterWords(QUEUE, opened, _QueueName, Annotated[list[str] | None, argument], check_ids)


def add_letter_commands(app: typer.Typer, words: LetterWords) -> None:
    """Add ``dead``, ``redrive`` and ``discard`` to the commands of a kind."""
    for name, command in (("dead", _dead), ("redrive", _redrive), ("discard", _discard)):
        app.command(name)(_spelled(grouped(command), words))


def _spelled(command: Callable[..., None], words: LetterWords) -> Callable[..., None]:
    """Return a command for a kind of object; messages of queues have no groups and no tags."""
    parts = {"name": words.name, "named": words.named}
    without = {"words", "group", "tag"} if words.kind is QUEUE else {"words"}
    parameters = [
        one.replace(annotation=parts.get(one.name, one.annotation))
        for one in inspect.signature(command).parameters.values()
        if one.name not in without
    ]

    def run(**given: Any) -> None:
        command(words=words, **dict.fromkeys(without - {"words"}), **given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _names(name: str, group: str | None) -> list[str]:
    return [name] if group is None else [name, group]


def _dead(
    *,
    words: Any,
    name: str,
    group: GroupName,
    count: Count = 100,
    tag: WithTag = None,
    fitting: LetterFlags,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the oldest dead letters: the messages that were given up."""
    matching = fitting.filter(tag)
    names = _names(name, group)
    with words.opened(store, *names) as target:
        letters = target.dead(count, matching=matching)
        if words.kind is QUEUE:
            from headwater.cli.output import show_items

            show_items(letters, as_json, "given up", "no dead letters")
            return
        state = target.info()
    _show_letters(letters, group, state if isinstance(state, list) else [state], as_json)


def _redrive(
    *,
    words: Any,
    name: str,
    group: GroupName,
    named: list[str] | None = None,
    count: AtMost = None,
    tag: WithTag = None,
    fitting: LetterFlags,
    rate: AtRate = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Redrive dead letters: they are redelivered, and their attempts are counted from 1 again."""
    chosen = fitting.arguments(words.meant(named) if named else None, count, rate, tag)
    names = _names(name, group)
    with words.opened(store, *names) as target:
        done = target.redrive(**chosen)
    gone = 0
    made: list[Any]
    if words.kind is QUEUE:
        made = [views.queues.QueueRedrivenView(queue=name, redriven=done)]
    elif words.kind is GROUP:
        made = [views.streams.RedrivenView.of(done, stream=name, group=group)]
        done, gone = done
    else:
        view = views.streams.TopicRedrivenView
        made = [view.of(part, topic=name, group=group, partition=n) for n, part in done.items()]
        done, gone = map(sum, zip(*done.values(), strict=True))
    if as_json:
        output.show_json(*made)
    else:
        source = words.kind.keys[0]
        lost = f"; {gone} stay, because the {source} no longer holds them" if gone else ""
        output.say(f"redriven: {done}{lost}")


def _discard(
    *,
    words: Any,
    name: str,
    group: GroupName,
    named: list[str] | None = None,
    count: AtMost = None,
    tag: WithTag = None,
    fitting: LetterFlags,
    rate: AtRate = None,
    yes: Yes = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Discard dead letters; asks before it discards all.

    Those of a group stay in their stream until its retention removes them.
    """
    chosen = fitting.arguments(words.meant(named) if named else None, count, rate, tag)
    names = _names(name, group)
    with words.opened(store, *names) as target:
        if not named and count is None:
            state = target.stats() if words.kind is QUEUE else target.info()
            dead = sum(part.dead for part in (state if isinstance(state, list) else [state]))
            some = " that fit" if chosen["matching"] else ""
            confirm(f"Discard all dead letters of {names[-1]}{some}, of {dead}?", yes)
        done = target.discard(**chosen)
    if words.kind is QUEUE:
        view: Any = views.queues.DiscardedView(queue=name, discarded=done)
    elif words.kind is GROUP:
        view = views.streams.LettersDiscardedView(stream=name, group=group, discarded=done)
    else:
        view = views.streams.TopicLettersDiscardedView(topic=name, group=group, discarded=done)
    output.answer(view, f"discarded: {done}", as_json)


def _show_letters(
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


# ── Of all groups and queues ──────────────────────────────────────────────────────────────────────


app = typer.Typer()
_Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]...",
        help="Only of these streams and queues; * stands for any text, in quotes.",
        show_default=False,
    ),
]


def _known(hw: Headwater, names: list[str] | None) -> list[str]:
    """Return the names; refuses one that nothing has, as most often it is mistyped."""
    plain = [name for name in names or () if name and "*" not in name]
    there = {*hw.streams(), *hw.queues()} if plain else set()
    for name in plain:
        if name not in there:
            likely = similar(name, there)
            cure = f"did you mean {likely!r}?" if likely else "check the name"
            raise InvalidInput(f"there is neither a stream nor a queue {name!r}; {cure}")
    return names or []


@app.command("list")
def list_places(names: _Names = None, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show which groups and queues have dead letters, and how many."""
    from headwater.whole_store.letters import count_everywhere

    with connected(store) as hw:
        found = hw.store.run(count_everywhere(_known(hw, names)))
    output.show_list(
        found,
        views.stores.LetterCountView.of,
        {
            "kind": lambda one: "group" if one.group else "queue",
            "name": lambda one: f"{one.name} / {one.group}" if one.group else one.name,
            "dead": lambda one: one.dead,
        },
        as_json,
        nothing="no dead letters",
    )


@app.command("redrive")
@grouped
def redrive_everywhere(
    *,
    names: _Names = None,
    tag: WithTag = None,
    fitting: LetterFlags,
    rate: AtRate = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Redrive dead letters of all groups and queues; their attempts begin anew."""
    matching = fitting.filter(tag)
    with connected(store) as hw:
        done = hw.redrive_everywhere(*_known(hw, names), matching=matching, rate_per_s=rate)
    lost = f"; {done.gone} stay, because streams no longer hold them" if done.gone else ""
    output.answer(
        views.stores.LettersMovedView.of(done),
        f"redriven: {done.moved}, in {done.places} groups and queues{lost}",
        as_json,
    )


@app.command("discard")
@grouped
def discard_everywhere(
    *,
    names: _Names = None,
    tag: WithTag = None,
    fitting: LetterFlags,
    rate: AtRate = None,
    yes: Yes = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Discard dead letters of all groups and queues, for ever; asks before that."""
    matching = fitting.filter(tag)
    with connected(store) as hw:
        chosen = _known(hw, names)
        confirm("Discard dead letters of all groups and queues that fit, for ever?", yes)
        done = hw.discard_everywhere(*chosen, matching=matching, rate_per_s=rate)
    output.answer(
        views.stores.LettersMovedView.of(done),
        f"discarded: {done.moved}, in {done.places} groups and queues",
        as_json,
    )
