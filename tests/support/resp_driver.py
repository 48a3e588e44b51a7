"""The RESP door with the manners of the library, so that the models prove both.

What the door has commands for goes through it; everything else goes to the store directly. What a
read brings through the door is compared with what the library reads, which knows times and headers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec
import redis

from headwater import (
    Delivery,
    InvalidInput,
    LeaseLost,
    Message,
    ReusedSequence,
    StaleSequence,
    UnknownGroup,
)
from headwater.doors.catalogue import GROUP, ICK, QUEUE, STREAM
from headwater.kernel.inputs import whole_ms
from headwater.queue.types import HeadedDelivery
from tests.support.every_door import RespDoor, ThroughDoor

_ERRORS: dict[str, Callable[[], Exception]] = {
    "STALE": lambda: StaleSequence("s", "p", 1, 2),
    "REUSED": lambda: ReusedSequence("s", "p", 1, 1, 1),
    "LEASELOST": lambda: LeaseLost("c", 0, 1, None),
    "NOGROUP": lambda: UnknownGroup("s", "g"),
}
_PUSH_WORDS = {"delay_ms": "DELAY", "priority": "PRIORITY", "ttl_ms": "TTL"}


class Driver(ThroughDoor):
    """An object of the library, of which some methods go through the door."""

    def __init__(self, direct: Any, client: Any, *names: str) -> None:
        super().__init__(direct, RespDoor(self._send), *names)
        self._client = client

    def _send(self, *words: Any) -> Any:
        try:
            return self._client.execute_command(*words)
        except redis.ResponseError as error:
            return error

    def refusal(self, name: str, text: str) -> Exception:
        return _ERRORS.get(name, lambda: InvalidInput(text))()

    def _ask(self, *words: Any) -> Any:
        answer = self._send(*words)
        if isinstance(answer, redis.ResponseError):
            code, _, text = str(answer).partition(" ")
            raise self.refusal(code, text)
        return answer


class DoorStream(Driver):
    kind = STREAM

    def write(self, tag: str, value: bytes, *, headers: Any = None) -> int:
        if headers is not None:
            return int(self._direct.write(tag, value, headers=headers))
        return int(self._ask("TWRITE", self.name, tag, value))

    def write_many(self, rows: Iterable[Any], **options: Any) -> range:
        rows = list(rows)
        if any(len(row) == 3 for row in rows):
            found: range = self._direct.write_many(rows, **options)
            return found
        words: list[Any] = []
        if "backlog" in options:
            words += ["BACKLOG", options["backlog"]]
        if "producer" in options:
            words += ["PRODUCER", options["producer"], options["sequence"]]
        flat = [part for row in rows for part in row]
        first = self._ask("TWRITE", self.name, *words, "ENTRIES", *flat)
        return range(first, first + len(rows))

    def read(self, offset: int, count: int, **options: Any) -> list[Message | None]:
        found: list[Message | None] = self._direct.read(offset, count, **options)
        seen = self._ask("TREAD", self.name, offset, count)
        assert seen == [None if m is None else [m.offset, m.tag.encode(), m.value] for m in found]
        return found

    def group(self, name: str, *args: Any, **options: Any) -> Any:
        direct = self._direct.group(name, *args, **options)
        if args or set(options) - {"member"}:
            # Its first read sets what was asked for.
            return direct
        return DoorGroup(direct, self._client, self._direct)


class DoorGroup(Driver):
    kind = GROUP

    def __init__(self, direct: Any, client: Any, stream: Any) -> None:
        super().__init__(direct, client, stream.name, direct.name)
        self._stream_directly = stream
        self._stream = stream.name

    def read(self, count: int, **terms: Any) -> list[Message]:
        ack_ms = terms.pop("ack_ms", None)
        expire_ms = terms.pop("expire_ms", None)
        assert not terms
        self._client.client_setname(self.member)
        retry: list[Any] = []
        if ack_ms is not None:
            retry = ["RETRY", whole_ms(ack_ms), 0 if expire_ms is None else whole_ms(expire_ms)]
        words = ["TREAD", self._stream, 0, count, "GROUP", self.name, *retry, "WITHATTEMPT"]
        taken = self._ask(*words)
        if not taken:
            return []
        first, last = min(row[0] for row in taken), max(row[0] for row in taken)
        known = {m.offset: m for m in self._stream_directly.read(first, last - first + 1) if m}
        messages = [msgspec.structs.replace(known[row[0]], attempt=row[3]) for row in taken]
        assert taken == [[m.offset, m.tag.encode(), m.value, m.attempt] for m in messages]
        return messages

    def redrive(self, count: int) -> tuple[int, int]:
        returned, gone = self._ask("TREDRIVE", self._stream, self.name, "COUNT", count)
        return returned, gone


class DoorQueue(Driver):
    kind = QUEUE

    def push_many(self, values: list[bytes], **options: Any) -> list[str]:
        """Push values through the door; those with headers directly, in the same order."""
        headers = options.pop("headers", None) or [{}] * len(values)
        words = [part for name, value in options.items() for part in (_PUSH_WORDS[name], value)]
        ids: list[str] = []
        pairs = zip(values, headers, strict=True)
        for headed, some in itertools.groupby(pairs, lambda pair: bool(pair[1])):
            part = list(some)
            if headed:
                more = {**options, "headers": [one for _, one in part]}
                ids += self._direct.push_many([value for value, _ in part], **more)
            else:
                found = self._ask(
                    "QPUSH", self.name, *words, "VALUES", *(value for value, _ in part)
                )
                ids += [one.decode() for one in found]
        return ids

    def pop(self, count: int, *, ack_ms: int | None = None) -> list[Delivery]:
        retry = [] if ack_ms is None else ["RETRY", ack_ms]
        found = self._ask("QPOP", self.name, "COUNT", count, *retry, "WITHHEADERS")
        return [
            HeadedDelivery(
                key.decode(),
                value,
                attempt,
                (receipt or b"").decode(),
                cast("Any", {name.decode(): each for name, each in pairs(headers)}),
            )
            for key, value, attempt, receipt, headers in found
        ]

    def stats(self) -> Any:
        shown = dict(pairs(self._ask("QSTATS", self.name)))
        facts = self._direct.stats()
        for name in ("ready", "delayed", "unacked", "dead", "damaged", "pushed", "popped", "acked"):
            assert shown[name.encode()] == getattr(facts, name)
        return facts


class DoorIck(Driver):
    kind = ICK

    def add(self, scores: dict[str, float]) -> tuple[int, int]:
        if not scores:
            return cast("tuple[int, int]", self._direct.add(scores))
        words = [word for member, score in scores.items() for word in (repr(score), member)]
        new, lowered = self._ask("ICKADD", self.key, *words)
        return new, lowered

    def _reserved(self, flat: list[Any]) -> list[tuple[str, float]]:
        rows = zip(flat[::2], flat[1::2], strict=True)
        return [(member.decode(), float(score)) for member, score in rows]

    def reserve(self, n: int, backwash: bool = False) -> list[tuple[str, float]]:
        words = ["BACKWASH"] if backwash else []
        return self._reserved(self._ask("ICKRESERVE", self.key, n, *words))

    def exchange(self, n: int, *members: str, backwash: bool = False) -> list[tuple[str, float]]:
        words = ["BACKWASH"] if backwash else []
        return self._reserved(self._ask("ICKEXCHANGE", self.key, n, *words, *members))

    def stats(self) -> dict[str, Any] | None:
        shown = self._send("ICKSTATS", self.key)
        if isinstance(shown, redis.ResponseError):
            assert str(shown).startswith("NOTFOUND"), shown
            return None
        facts = {name.decode(): value for name, value in pairs(shown)}
        numbers = {
            name: float(value) if name.endswith(("_min", "_max")) else value
            for name, value in facts.items()
        }
        assert numbers.keys() == cast("Any", self._direct.stats()).keys()
        return numbers


def pairs(shown: Any) -> list[tuple[Any, Any]]:
    """Return the pairs of a map, which RESP2 spells as a flat list."""
    if isinstance(shown, dict):
        return list(shown.items())
    return list(zip(shown[::2], shown[1::2], strict=True))
