"""Searching a stream for messages by tag, text or a field of JSON, within a budget.

A log has no index of what is in its messages: a search reads them, node by node, and stops when it
has found enough or has used up what it may take. It then says where to continue.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from headwater.errors import InvalidInput
from headwater.log import arrow_compute as pc
from headwater.log.handles import StreamHandle
from headwater.log.limits import MAX_MS, MAX_OFFSET, MAX_READ, check_count, check_offset
from headwater.log.reading import info, scan_part
from headwater.log.runs import message_of
from headwater.log.types import Message, Searched, StreamInfo
from headwater.sizes import bytes_of, check_max_bytes, first_of
from headwater.store.call import Clock, Operation, YieldTurn

# How many offsets are read at once; fewer when messages are large.
_PART_OFFSETS: Final = 10_000
_PART_BYTES: Final = 8 * 1024 * 1024
# How much is opened, and checked, before other tasks of an event loop run.
_REPLY_BYTES: Final = 128 * 1024
_UNPACKED_BYTES: Final = 4 * 1024 * 1024
_TURN_BYTES: Final = 128 * 1024
_CONDITION: Final = re.compile(r"([^=<>!\s]+)\s*(?:(!=|=|<|>)\s*(.*))?", re.DOTALL)
_STEP: Final = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class FieldCondition:
    """A condition on a field of a JSON value: ``fare.amount>12``, ``legs[0].to=Bonn``, ``paid``."""

    path: tuple[str | int, ...]
    sign: str | None
    wanted: Any

    def holds(self, value: bytes) -> bool:
        """Return whether a value is JSON with such a field."""
        try:
            found = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return False
        for step in self.path:
            if isinstance(step, str) and isinstance(found, dict):
                found = found.get(step, _MISSING)
            elif isinstance(step, int) and isinstance(found, list) and step < len(found):
                found = found[step]
            else:
                return False
        return found is not _MISSING and self._compares(found)

    def _compares(self, found: Any) -> bool:
        if self.sign is None:
            return True
        if self.sign in ("=", "!="):
            same = _same(found, self.wanted)
            return same if self.sign == "=" else not same
        if not _is_number(found):
            return False
        return bool(found < self.wanted if self.sign == "<" else found > self.wanted)

    @property
    def word(self) -> str | None:
        """A text that is in every value for which the condition holds; None without one."""
        names = [step for step in self.path if isinstance(step, str)]
        # Other names may be spelled in JSON by escapes.
        return next((name for name in reversed(names) if re.fullmatch(r"[\w-]+", name, re.A)), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(found: Any, wanted: Any) -> bool:
    """Compare a field with what was typed: 12, true, null, "12" or plain text."""
    if isinstance(found, str):
        return found == (wanted if isinstance(wanted, str) else str(wanted))
    alike = type(found) is type(wanted) or (_is_number(found) and _is_number(wanted))
    return alike and bool(found == wanted)


def read_condition(text: str) -> FieldCondition:
    """Return a condition on a field as it is typed; raises InvalidInput."""
    match = _CONDITION.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(_wrong(text))
    spelled, sign, typed = match.groups()
    try:
        steps = tuple(name or int(place) for name, place in _STEP.findall(spelled))
    except ValueError:  # of thousands of digits
        raise InvalidInput(_wrong(text)) from None
    if _spelled(steps) != spelled.removeprefix("."):
        raise InvalidInput(_wrong(text))
    wanted: Any = typed
    if sign is not None:
        try:
            wanted = msgspec.json.decode(typed)
        except msgspec.DecodeError:
            wanted = typed
        except RecursionError:
            raise InvalidInput(_wrong(text)) from None
        if sign in "<>" and not _is_number(wanted):
            raise InvalidInput(f"{text!r} compares with {typed!r}, which is no number; use = or !=")
    return FieldCondition(steps, sign, wanted)


def _spelled(steps: tuple[str | int, ...]) -> str:
    words = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps]
    return "".join(words).removeprefix(".")


def _wrong(text: str) -> str:
    shown = text if len(text) <= 100 else f"{text[:100]}…"
    return (
        f"{shown!r} is no condition on a field; write a path, and perhaps =, !=, < or > and a "
        "value, like fare.amount>12 or legs[0].to=Bonn"
    )


@dataclass(frozen=True, slots=True)
class SearchFilter:
    """What is searched for; every part that is given must hold.

    ``tag`` is the whole tag, in which * stands for any text; ``text`` is in the value, and
    ``where`` holds for it.
    """

    tag: str | None = None
    text: str | None = None
    where: FieldCondition | None = None

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that are wanted."""
        if self.tag is not None:
            tags = batch.column("tag")
            batch = batch.filter(
                pc.match_substring_regex(tags, _pattern(self.tag))
                if "*" in self.tag
                else pc.equal(tags, self.tag)
            )
        for text in (self.text, None if self.where is None else self.where.word):
            if text and batch.num_rows:
                batch = batch.filter(pc.match_substring(batch.column("value"), text))
        if self.where is not None and batch.num_rows:
            holds: Callable[[bytes], bool] = self.where.holds
            batch = batch.filter(pa.array(map(holds, batch.column("value").to_pylist())))
        return batch


def _pattern(tag: str) -> str:
    return "(?s)^" + ".*".join(map(re.escape, tag.split("*"))) + "$"


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """What a search is asked for, and its budget; Stream.search says what each means."""

    tag: str | None
    text: str | None
    where: str | None
    start: int | None
    newest_first: bool
    count: int
    max_messages: int | None
    max_ms: int | None
    max_bytes: int | None = None


def search(stream: StreamHandle, asked: SearchRequest) -> Operation[Searched[Any]]:
    """Search from an offset on, or back from it, within a budget; raises InvalidInput.

    It looks at one part at least, and may so take a little more than its budget.
    """
    where = None if asked.where is None else read_condition(asked.where)
    sought = SearchFilter(asked.tag, asked.text, where)
    start, backwards = asked.start, asked.newest_first
    count = check_count(asked.count, "count", MAX_READ)
    messages_left = _limit(asked.max_messages, "max_messages", MAX_OFFSET)
    patience = _limit(asked.max_ms, "max_ms", MAX_MS)
    room = check_max_bytes(asked.max_bytes)
    begun = yield Clock()
    facts = yield from info(stream)
    low, high = facts.first, facts.last
    if start is not None:
        check_offset(start, "start")
        low, high = (low, min(start, high)) if backwards else (max(start, low), high)
    at = high if backwards else low
    found: list[Message[Any]] = []
    searched = parts = 0
    while low <= at <= high and len(found) < count:
        left = messages_left - searched
        if parts and (left <= 0 or (yield Clock()) - begun >= patience):
            break
        parts += 1
        part = max(min(_part_length(facts), left), 1)
        part_low = max(at - part + 1, low) if backwards else at
        part_high = at if backwards else min(at + part - 1, high)
        wish = _PartWish(part_low, part_high, backwards, count - len(found), room)
        rows, own = yield from _part(stream, sought, wish)
        searched += rows
        found += own
        at = part_low - 1 if backwards else part_high + 1
        if room is not None:
            room -= bytes_of(own)
        if own and (len(found) == count or (room is not None and room <= 0)):
            at = own[-1].offset + (-1 if backwards else 1)
            break
    ended = at < low or at > high
    return Searched(
        messages=found,
        searched=searched,
        low=at + 1 if backwards else low,
        high=high if backwards else at - 1,
        next=None if ended else at,
        first=facts.first,
        last=facts.last,
        ms=round((yield Clock()) - begun),
    )


def _limit(given: int | None, what: str, most: int) -> int:
    return most if given is None else check_count(given, what, most)


def _part_length(facts: StreamInfo) -> int:
    each = facts.bytes / facts.length if facts.length else 1
    return max(min(int(_PART_BYTES / max(each, 1)), _PART_OFFSETS), 1)


class _PartWish(NamedTuple):
    """What a search wants of a part: its first or last messages that fit, up to so many bytes."""

    low: int
    high: int
    backwards: bool
    most: int
    room: int | None

    def best(self, found: list[Message[Any]]) -> list[Message[Any]]:
        """Return those that are wanted of messages that fit, which are in the wanted order."""
        return first_of(found[: self.most], self.room)

    def far_exceeded(self, count: int, size: int) -> bool:
        """Return whether so many messages of so many bytes are worth to be cut."""
        return count > 2 * self.most or (self.room is not None and size > 2 * self.room)


def _part(
    stream: StreamHandle, sought: SearchFilter, wish: _PartWish
) -> Operation[tuple[int, list[Message[Any]]]]:
    """Return how many messages a part has, and those that are wanted, in the order of the search.

    Of those that fit, about twice as many are kept as are wanted.
    """
    rows, at, size = 0, wish.low, 0
    found: list[Message[Any]] = []
    while at:
        scanned = yield from scan_part(
            stream, at, wish.high + 1, headers=True, most=_REPLY_BYTES, max_bytes=_UNPACKED_BYTES
        )
        for batch in scanned.pieces:
            rows += batch.num_rows
            for piece in _pieces(batch):
                new = _messages(sought.of(piece))
                found = new[::-1] + found if wish.backwards else found + new
                size += bytes_of(new)
                if wish.far_exceeded(len(found), size):
                    found = wish.best(found)
                    size = bytes_of(found)
                yield YieldTurn()
        at = scanned.next
    return rows, wish.best(found)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch, so that it takes about a millisecond to look at each piece of it."""
    rows = max(batch.num_rows * _TURN_BYTES // max(batch.nbytes, 1), 1)
    for at in range(0, batch.num_rows, rows):
        yield batch.slice(at, rows)


def _messages(batch: pa.RecordBatch) -> list[Message[Any]]:
    if not batch.num_rows:
        return []
    times = batch.column("time").cast(pa.int64()).to_pylist()
    columns = [batch.column(name).to_pylist() for name in ("offset", "tag", "value")]
    headers = batch.column("headers").to_pylist()
    return [
        message_of(offset, tag, value, time_ms, 0, own)
        for offset, tag, value, time_ms, own in zip(*columns, times, headers, strict=True)
    ]
