"""Commands that list dead letters: TDEAD, and the same of topics (TPDEAD) and of queues (QDEAD)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headwater.doors.catalogue import GROUP, QUEUE, TOPIC_GROUP, Kind
from headwater.log.types import DeadLetter, TopicDeadLetter
from headwater.queue.types import QueueItem
from headwater.serve.listing import letters_of
from headwater.serve.resp.arguments import Arguments
from headwater.serve.resp.commands import RespCommand, Words
from headwater.serve.resp.derived import options_of, read_option, spelled_options
from headwater.serve.resp.door import RespSession


def _group_row(letter: DeadLetter | TopicDeadLetter) -> list[Any]:
    said = None if letter.cause is None else str(letter.cause)
    return [letter.origin, letter.tag, letter.value, letter.attempts, letter.buried_ms, said]


def _topic_row(letter: TopicDeadLetter) -> list[Any]:
    return [letter.partition, *_group_row(letter)]


def _queue_row(letter: QueueItem) -> list[Any]:
    said = None if letter.cause is None else str(letter.cause)
    return [letter.id, letter.value, letter.attempt, letter.buried_ms, said]


def _list_command(kind: Kind, columns: str, row: Callable[[Any], list[Any]]) -> RespCommand:
    operation = kind.operation("dead", asyncio=True)
    options = options_of(operation)

    async def run(session: RespSession, words: Words) -> list[Any]:
        arguments = Arguments(words)
        names = [arguments.text() for _ in kind.keys]
        given: dict[str, Any] = {"count": 100}
        start, with_next = "", False
        while (word := arguments.take_option("FROM", "WITHNEXT", *options)) is not None:
            if word == "FROM":
                start = arguments.text()
            elif word == "WITHNEXT":
                with_next = True
            else:
                given |= read_option(options[word], arguments)
        arguments.end()
        run = session.door.client.store.run
        if kind.check is not None:
            await run(kind.check(*names))
        page = await run(letters_of(kind, names, place=start, **operation.arguments(given)[1]))
        rows: list[Any] = [row(letter) for letter in page.letters]
        return [page.place, *rows] if with_next else rows

    spelled = spelled_options(options)
    summary = (
        f"Returns the oldest dead letters, no more once they have 4 MiB: [[{columns}], ...]. "
        "WITHNEXT has the place before them from which the next list goes on, or null."
    )
    return RespCommand(
        f"{kind.letters}DEAD",
        -1 - len(kind.keys),
        operation.row.scope,
        -1,
        kind.command,
        " ".join(("key", *kind.keys[1:], spelled[0], "[FROM place] [WITHNEXT]", *spelled[1:])),
        summary,
        run,
    )


LETTER_COMMANDS: Final = (
    _list_command(GROUP, "offset, tag, entry, attempts, buried-ms, cause", _group_row),
    _list_command(
        TOPIC_GROUP, "partition, offset, tag, entry, attempts, buried-ms, cause", _topic_row
    ),
    _list_command(QUEUE, "id, value, attempts, buried-ms, cause", _queue_row),
)
