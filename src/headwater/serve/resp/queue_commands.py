"""Commands of queues: QPUSH, QPOP, QACK, QNACK, QEXTEND, QSTATS."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import asdict
from typing import Any, Final

from headwater.errors import UnknownQueue
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES
from headwater.queue.types import Delivery
from headwater.serve.resp.arguments import Arguments, text_of
from headwater.serve.resp.commands import RespCommand, Words, wrong_arity
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


def qack(session: RespSession, words: Words) -> Awaitable[int]:
    """QACK: acknowledge messages."""
    return session.door.queue(text_of(words[1])).ack(list(map(text_of, words[2:])))


def qnack(session: RespSession, words: Words) -> Awaitable[int]:
    """QNACK: give messages back as failed."""
    arguments = Arguments(words)
    queue = session.door.queue(arguments.text())
    delay_ms = arguments.number() if arguments.take_option("DELAY") else 0
    if not arguments:
        raise wrong_arity("qnack")
    return queue.nack(list(map(text_of, arguments.rest())), delay_ms=delay_ms)


def qextend(session: RespSession, words: Words) -> Awaitable[int]:
    """QEXTEND: take more time for messages."""
    arguments = Arguments(words)
    queue, ack_ms = session.door.queue(arguments.text()), arguments.number()
    return queue.extend(list(map(text_of, arguments.rest())), ack_ms=ack_ms)


async def qstats(session: RespSession, words: Words) -> dict[str, Any]:
    """QSTATS: return how a queue stands."""
    found = await session.door.queue(text_of(words[1])).stats()
    if not (found.exists or found.waiting):
        raise UnknownQueue(found.name)
    return _hyphened(asdict(found))


def _hyphened(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts under names as Redis spells them."""
    return {
        name.replace("_", "-"): _hyphened(value) if isinstance(value, dict) else value
        for name, value in facts.items()
    }


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
    RespCommand("QACK", -3, Scope.WRITE, -1, _Q, "key receipt [receipt ...]",
                "Acknowledges messages; returns how many were still this consumer's.", qack),
    RespCommand("QNACK", -3, Scope.WRITE, -1, _Q,
                "key [DELAY milliseconds] receipt [receipt ...]",
                "Returns messages to the queue as failed; returns how many.", qnack),
    RespCommand("QEXTEND", -4, Scope.WRITE, -1, _Q, "key retry-ms receipt [receipt ...]",
                "Sets the deadline to this long from now; returns for how many.", qextend),
    RespCommand("QSTATS", 2, Scope.READ, -1, _Q, "key",
                "Returns the state of a queue.", qstats),
)  # fmt: skip
