"""Commands of queues: QPUSH, QPOP, QPEEK, QSTATS, and what is derived."""

from __future__ import annotations

from typing import Any, Final, cast

from headwater.doors.catalogue import QUEUE
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES
from headwater.queue.types import Delivery, State
from headwater.serve.listing import messages_in_queue
from headwater.serve.resp.arguments import Arguments
from headwater.serve.resp.commands import RespCommand, Words, wrong_arity
from headwater.serve.resp.derived import commands_of
from headwater.serve.resp.door import RespSession
from headwater.serve.resp.replies import CommandRefused, syntax_error

# One call of the store takes at most this many.
MOST_POPPED: Final = 1000


async def qpush(session: RespSession, words: Words) -> str | list[str]:
    """QPUSH: put messages into a queue."""
    arguments = Arguments(words)
    queue = session.door.queue(arguments.text())
    if len(words) == 3:
        return await queue.push(words[2])
    found: dict[str, Any] = {}
    dedupe: bytes | None = None
    for option in arguments.options():
        match option:
            case "DELAY":
                found["delay_ms"] = arguments.number()
            case "PRIORITY":
                found["priority"] = arguments.number()
            case "TTL":
                found["ttl_ms"] = arguments.number()
            case "DEDUPE":
                dedupe = arguments.take()
            case "VALUES":
                break
            case _:
                raise syntax_error()
    values = arguments.rest()
    if not values:
        raise wrong_arity("qpush")
    if dedupe is None:
        return await queue.push_many(values, **found)
    if len(values) > 1:
        raise CommandRefused("DEDUPE is the key of one message; push one at a time")
    return [await queue.push(values[0], dedupe=dedupe, **found)]


async def qpop(session: RespSession, words: Words) -> list[list[Any]]:
    """QPOP: take messages out of a queue."""
    arguments = Arguments(words)
    queue = session.door.queue(arguments.text())
    count, block_ms, ack_ms, with_headers = 1, 0.0, None, False
    for option in arguments.options():
        match option:
            case "COUNT":
                count = arguments.number()
            case "BLOCK":
                block_ms = arguments.block_ms()
            case "RETRY":
                ack_ms = arguments.number()
            case "WITHHEADERS":
                with_headers = True
            case _:
                raise syntax_error()
    if count > MOST_POPPED:
        raise CommandRefused(f"COUNT may be up to {MOST_POPPED}; pop again for more")

    async def pop(block_ms: float) -> list[Delivery]:
        return await queue.pop(count, ack_ms=ack_ms, block_ms=block_ms, max_bytes=LIST_BYTES)

    if block_ms and count:
        with session.may_wait():
            found = await session.door.waiting.in_turn(("queue", queue.name), block_ms, pop)
    else:
        async with session.door.at_store:
            found = await pop(0)
    rows: list[list[Any]] = [[one.id, one.value, one.attempt, one.receipt or None] for one in found]
    if with_headers:
        for row, one in zip(rows, found, strict=True):
            row.append(dict(one.headers))
    return rows


async def qpeek(session: RespSession, words: Words) -> list[Any]:
    """QPEEK: return messages without taking them."""
    arguments = Arguments(words)
    name, state, most, start, with_next = arguments.text(), "ready", 100, "", False
    for option in arguments.options():
        match option:
            case "STATE":
                state = arguments.text()
            case "COUNT":
                most = arguments.number()
            case "FROM":
                start = arguments.text()
            case "WITHNEXT":
                with_next = True
            case _:
                raise syntax_error()
    found = await messages_in_queue(session.door.client, name, cast(State, state), most, start)
    rows = [
        [one.id, one.value, one.attempt, one.priority, one.due_ms, one.place] for one in found.items
    ]
    return [found.next, *rows] if with_next else rows


_Q = "queue"
QUEUE_COMMANDS: Final = (
    RespCommand("QPUSH", -3, Scope.WRITE, -1, _Q,
                "key value | key [DELAY milliseconds] [PRIORITY priority] [TTL milliseconds] "
                "[DEDUPE name] VALUES value [value ...]",
                "Puts messages into a queue, all or none; returns the id, or ids.", qpush),
    RespCommand("QPOP", -2, Scope.WRITE, -1, _Q,
                "key [COUNT count] [BLOCK milliseconds] [RETRY retry-ms] [WITHHEADERS]",
                "Takes messages, no more once they have 4 MiB: [[id, value, attempt, receipt], "
                "...], and their headers as a map after that if asked for. With RETRY they are "
                "redelivered unless acknowledged in time.", qpop, blocking=True),
    RespCommand("QPEEK", -2, Scope.READ, -1, _Q,
                "key [STATE state] [COUNT count] [FROM place] [WITHNEXT]",
                "Returns messages that are ready, delayed, unacked or dead without taking them, no "
                "more once they have 4 MiB: [[id, value, attempt, priority, due-ms, place], ...]. "
                "WITHNEXT has the place before them from which the next list goes on, or null.",
                qpeek),
    *commands_of(QUEUE),
)  # fmt: skip
