"""The RESP door with the manners of the library, so that the models prove both.

What the door has commands for goes through it; everything else goes to the store directly. What a
read brings through the door is compared with what the library reads, which knows times and headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import redis

import headwater
from headwater import InvalidInput, Message, ReusedSequence, StaleSequence, UnknownGroup
from headwater.inputs import deadline, needed_deadline, whole_ms
from headwater.log.ack_arguments import ranges_of

_ERRORS: dict[str, Callable[[], Exception]] = {
    "STALE": lambda: StaleSequence("s", "p", 1, 2),
    "REUSED": lambda: ReusedSequence("s", "p", 1, 1, 1),
    "NOGROUP": lambda: UnknownGroup("s", "g"),
}


class _Driver:
    """An object of the library, of which some methods go through the door."""

    def __init__(self, direct: Any, client: Any) -> None:
        self._direct = direct
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._direct, name)

    def _ask(self, *words: Any) -> Any:
        try:
            return self._client.execute_command(*words)
        except redis.ResponseError as error:
            code, _, text = str(error).partition(" ")
            raise _ERRORS.get(code, lambda: InvalidInput(text))() from None


class DoorClient(_Driver):
    """A client whose streams and groups go through the door."""

    def stream(self, name: str) -> Any:
        return DoorStream(self._direct.stream(name), self._client)


class DoorStream(_Driver):
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

    def evict(self, n: int) -> int:
        return int(self._ask("TEVICT", self.name, n))

    def group(self, name: str, *args: Any, **options: Any) -> Any:
        direct = self._direct.group(name, *args, **options)
        if args or set(options) - {"member"}:
            # Its first read sets what was asked for.
            return direct
        return DoorGroup(direct, self._client, self._direct)


class DoorGroup(_Driver):
    def __init__(self, direct: Any, client: Any, stream: Any) -> None:
        super().__init__(direct, client)
        self._stream_directly = stream
        self._stream = stream.name

    def read(self, count: int, **terms: Any) -> list[Message]:
        retry_ms = deadline(terms.pop("ack_ms", None), terms.pop("retry_ms", None))
        expire_ms = terms.pop("expire_ms", None)
        assert not terms
        self._client.client_setname(self.member)
        retry: list[Any] = []
        if retry_ms is not None:
            retry = ["RETRY", whole_ms(retry_ms), 0 if expire_ms is None else whole_ms(expire_ms)]
        words = ["TREAD", self._stream, 0, count, "GROUP", self.name, *retry, "WITHATTEMPT"]
        taken = self._ask(*words)
        if not taken:
            return []
        first, last = min(row[0] for row in taken), max(row[0] for row in taken)
        known = {m.offset: m for m in self._stream_directly.read(first, last - first + 1) if m}
        messages = [msgspec.structs.replace(known[row[0]], attempt=row[3]) for row in taken]
        assert taken == [[m.offset, m.tag.encode(), m.value, m.attempt] for m in messages]
        return messages

    def _settle(self, command: str, before: list[Any], offsets: tuple[Any, ...]) -> int:
        words = [f"{first}-{last}" for first, last in ranges_of(offsets)]
        return int(self._ask(command, self._stream, self.name, *before, *words)) if words else 0

    def ack(self, *offsets: Any) -> int:
        return self._settle("TACK", [], offsets)

    def nack(self, *offsets: Any, delay_ms: Any = 0) -> int:
        return self._settle("TNACK", ["DELAY", whole_ms(delay_ms)], offsets)

    def extend(self, *offsets: Any, **terms: Any) -> int:
        retry_ms = needed_deadline(terms.get("ack_ms"), terms.get("retry_ms"))
        return self._settle("TEXTEND", [whole_ms(retry_ms)], offsets)

    def seek(self, to: int | str) -> int:
        return int(self._ask("TSEEK", self._stream, self.name, to))

    def redrive(self, count: int) -> tuple[int, int]:
        returned, gone = self._ask("TREDRIVE", self._stream, self.name, "COUNT", count)
        return returned, gone


def through_door(direct: headwater.Headwater, client: Any) -> Any:
    """Return a client of the library whose streams and groups go through the door."""
    return DoorClient(direct, client)
