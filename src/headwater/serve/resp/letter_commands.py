"""Commands of dead letters: TDEAD, TREDRIVE, TDISCARD, and the same of topics (TP) and queues (Q).

What is named comes last: offsets, offsets with their partitions, or ids. Without any, a command
concerns the oldest letters, or those that fit its filter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from headwater.doors.catalogue import GROUP, QUEUE, TOPIC_GROUP, Kind
from headwater.kernel.declaring import Scope
from headwater.kernel.failures import LetterFilter
from headwater.log.types import DeadLetter, TopicDeadLetter
from headwater.queue.types import QueueItem
from headwater.serve.listing import letters_of
from headwater.serve.resp.arguments import Arguments, int_of, span_of, text_of
from headwater.serve.resp.commands import RespCommand, Words
from headwater.serve.resp.derived import Look, spelled_reply
from headwater.serve.resp.door import RespSession
from headwater.serve.resp.log_commands import look_at_group, look_at_topic_group
from headwater.serve.resp.queue_commands import qstats
from headwater.serve.resp.replies import syntax_error

LETTERS: Final = 100
_FILTER: Final = {
    "TAG": "tag",
    "ERROR": "error",
    "MINATTEMPTS": "min_attempts",
    "AFTER": "after_ms",
    "BEFORE": "before_ms",
}
_FITTING: Final = "[TAG tag] [ERROR text] [MINATTEMPTS n] [AFTER ms] [BEFORE ms]"


class LettersAsked(NamedTuple):
    """Which letters a command asks for; ``with_next`` has the place to go on from first."""

    most: int | None = None
    start: str = ""
    with_next: bool = False
    matching: LetterFilter | None = None


def letters_asked(arguments: Arguments, *own: str) -> LettersAsked:
    """Read the options of a command on letters: COUNT, a filter, and some of its own."""
    found: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    while (option := arguments.take_option("COUNT", *own, *_FILTER)) is not None:
        match option:
            case "COUNT":
                found["most"] = arguments.number()
            case "FROM":
                found["start"] = arguments.text()
            case "WITHNEXT":
                found["with_next"] = True
            case "TAG" | "ERROR":
                facts[_FILTER[option]] = arguments.text()
            case _:
                facts[_FILTER[option]] = arguments.number()
    return LettersAsked(**found, matching=LetterFilter(**facts) if facts else None)


def _group_row(letter: DeadLetter | TopicDeadLetter) -> list[Any]:
    said = None if letter.cause is None else str(letter.cause)
    return [letter.origin, letter.tag, letter.value, letter.attempts, letter.buried_ms, said]


def _topic_row(letter: TopicDeadLetter) -> list[Any]:
    return [letter.partition, *_group_row(letter)]


def _queue_row(letter: QueueItem) -> list[Any]:
    said = None if letter.cause is None else str(letter.cause)
    return [letter.id, letter.value, letter.attempt, letter.buried_ms, said]


def _by_partition(words: Words) -> dict[int, list[tuple[int, int]]]:
    spans: dict[int, list[tuple[int, int]]] = {}
    for word in words:
        partition, colon, span = word.partition(b":")
        if not colon:
            raise syntax_error()
        spans.setdefault(int_of(partition), []).append(span_of(span))
    return spans


class _Door(NamedTuple):
    """How dead letters of a kind are spelled: one that is named, those that are listed."""

    kind: Kind
    named: str
    meant: Callable[[Words], Any]
    columns: str
    row: Callable[[Any], list[Any]]
    redriven: str
    look: Look


_SUMMARIES: Final = {
    "redrive": "Redrives dead letters: they are redelivered at once, as if they had never been "
    "tried. Returns {redriven}.",
    "discard": "Discards dead letters; returns how many.",
}
_DOORS: Final = (
    _Door(
        *(GROUP, "offset|start-end", lambda words: list(map(span_of, words))),
        *("offset, tag, entry, attempts, buried-ms, cause", _group_row),
        *("how many, and how many are gone", look_at_group),
    ),
    _Door(
        *(TOPIC_GROUP, "partition:offset|partition:start-end", _by_partition),
        "partition, offset, tag, entry, attempts, buried-ms, cause",
        *(_topic_row, "[[partition, how many, how many are gone], ...]", look_at_topic_group),
    ),
    _Door(
        *(QUEUE, "id", lambda words: list(map(text_of, words))),
        "id, value, attempts, buried-ms, cause",
        *(_queue_row, "how many", qstats),
    ),
)


def _names(kind: Kind, arguments: Arguments) -> list[str]:
    return [arguments.text() for _ in kind.keys]


async def _check(session: RespSession, kind: Kind, names: list[str]) -> None:
    if kind.check is not None:
        await session.door.client.store.run(kind.check(*names))


def _list_command(door: _Door) -> RespCommand:
    kind = door.kind

    async def run(session: RespSession, words: Words) -> list[Any]:
        arguments = Arguments(words)
        names = _names(kind, arguments)
        asked = letters_asked(arguments, "FROM", "WITHNEXT")
        arguments.end()
        await _check(session, kind, names)
        count = LETTERS if asked.most is None else asked.most
        page = await session.door.client.store.run(
            letters_of(kind, names, count, asked.start, asked.matching)
        )
        rows: list[Any] = [door.row(letter) for letter in page.letters]
        return [page.place, *rows] if asked.with_next else rows

    syntax = " ".join(("key", *kind.keys[1:], "[COUNT count] [FROM place] [WITHNEXT]", _FITTING))
    summary = (
        f"Returns the oldest dead letters, no more once they have 4 MiB: [[{door.columns}], ...]. "
        "WITHNEXT has the place before them from which the next list goes on, or null."
    )
    least = -1 - len(kind.keys)
    name = f"{kind.letters}DEAD"
    return RespCommand(name, least, Scope.READ, -1, kind.command, syntax, summary, run)


def _change_command(door: _Door, verb: str) -> RespCommand:
    kind = door.kind

    async def run(session: RespSession, words: Words) -> Any:
        arguments = Arguments(words)
        names = _names(kind, arguments)
        asked = letters_asked(arguments)
        named = arguments.rest()
        given: dict[str, Any] = {"matching": asked.matching}
        if asked.most is not None:
            given["count"] = asked.most
        if named:
            given["letters"] = door.meant(named)
        await _check(session, kind, names)
        target = kind.open(session.door.client, *names)
        return spelled_reply(await getattr(target, verb)(**given))

    syntax = " ".join(("key", *kind.keys[1:], "[COUNT count]", _FITTING, f"[{door.named} ...]"))
    least = -1 - len(kind.keys)
    return RespCommand(
        *(f"{kind.letters}{verb.upper()}", least, Scope.ADMIN, -1, kind.command),
        *(syntax, _SUMMARIES[verb].format(redriven=door.redriven), run),
        look=door.look,
    )


LETTER_COMMANDS: Final = tuple(
    command
    for door in _DOORS
    for command in (
        _list_command(door),
        _change_command(door, "redrive"),
        _change_command(door, "discard"),
    )
)
