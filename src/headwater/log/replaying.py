"""Replaying a range of a stream into another one: once, at a speed, resumable.

Parts of the range are written with a producer, and with the last offset of the part as sequence: so
the target itself knows how far the replay is, in the same step in which it takes a part. A repeated
replay continues there, and writes nothing twice. A part is taken only after the one that its writer
believes to be the newest, so two clients that replay the same range at the same time write nothing
twice either, even if a compaction makes them cut other parts.

Without I/O: both clients run the operations of ``ReplayRun`` and wait in between as it says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headwater.errors import InvalidInput, StaleSequence, UnknownStream
from headwater.kernel.inputs import refuse_own_name
from headwater.log import grouping
from headwater.log.handles import GroupHandle, GroupOptions, StreamHandle, batch_of_entries
from headwater.log.keys import MAX_OFFSET, check_name
from headwater.log.reading import info, newest_sequence, read_from
from headwater.log.types import Message
from headwater.log.writing import append
from headwater.store.call import Operation

# The most messages and bytes of a part, and how long it lasts when it is played.
_PART_MESSAGES: Final = 500
_PART_BYTES: Final = 1024 * 1024
_PART_MS: Final = 200
# A request to stop is noticed within this time.
_PAUSE_S: Final = 0.1
LEAST_SPEED: Final = 0.001
MOST_SPEED: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Replayed:
    """How far a replay is: everything below ``next`` is in ``into``.

    ``written`` messages were copied by this run; ``missed`` offsets were evicted, or lost by the
    store, before they could be. ``complete`` says that the whole range was replayed.
    """

    source: str
    into: str
    group: str | None
    first: int
    last: int
    next: int
    written: int
    missed: int
    speed: float | None
    producer: str
    complete: bool


class ReplayRequest(NamedTuple):
    """What is replayed, and how; Headwater.replay says what each means."""

    source: str
    into: str | None = None
    first: int | None = None
    last: int | None = None
    speed: float | None = None
    group: str | None = None
    producer: str | None = None

    @property
    def target(self) -> str:
        """The stream that is written; that of a sandbox group is named after the source."""
        return self.into if self.into is not None else f"{self.source}.sandbox"

    def check(self) -> None:
        """Raise InvalidInput for what cannot be replayed."""
        check_name(self.source, "stream")
        if self.into is None and self.group is None:
            raise InvalidInput("a replay needs a stream or a sandbox group; give into or group")
        refuse_own_name(check_name(self.target, "stream"), "stream")
        if self.target == self.source:
            raise InvalidInput("a stream cannot be replayed into itself; name another one")
        if self.group is not None:
            check_name(self.group, "group")
        if self.producer is not None:
            check_name(self.producer, "producer")
        for offset in (self.first, self.last):
            if offset is not None and not 1 <= offset <= MAX_OFFSET:
                raise InvalidInput(f"{offset!r} is not an offset; offsets begin at 1")
        if self.first is not None and self.last is not None and self.first > self.last:
            raise InvalidInput(f"the range ends at {self.last}, before it begins at {self.first}")
        if self.speed is not None and not LEAST_SPEED <= self.speed <= MOST_SPEED:
            raise InvalidInput(
                f"speed is 1 for the original speed, 10 for ten times that, not {self.speed}"
            )


class ReplayRun:
    """A replay in progress: yields operations, and says how long to wait before each."""

    def __init__(
        self,
        asked: ReplayRequest,
        handle: Callable[[str, None], StreamHandle],
        progress: Callable[[Replayed], object] | None,
        stop: Callable[[], bool] | None,
        clock: Callable[[], float],
    ) -> None:
        asked.check()
        self._asked = asked
        self._source = handle(asked.source, None)
        self._target = handle(asked.target, None)
        self._progress, self._stop, self._clock = progress, stop, clock
        self._part: list[Message[Any]] = []
        self._first = self._last = self._at = self._next = 0
        self._producer = asked.producer or ""
        self._written = self._missed = self._done = 0
        # When the first part was read, and the time of its first message.
        self._began: tuple[float, int] | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more is to be done: it is complete, or was asked to stop."""
        if self._stop is not None and self._stop():
            return True
        return self._first > 0 and not self._part and self._next > self._last

    def pauses(self) -> Iterator[float]:
        """Yield how long to wait, again and again, until the next step is due."""
        while self._part and self._asked.speed is not None and self._began and not self.over:
            since_s, since_ms = self._began
            played_s = (self._part[0].time_ms - since_ms) / 1000 / self._asked.speed
            early = played_s - (self._clock() - since_s)
            if early <= 0:
                return
            yield min(early, _PAUSE_S)

    def step(self) -> Operation[None]:
        """Open the replay, or write the part that is due; then read the next one."""
        if not self._first:
            yield from self._open()
        elif self._part:
            yield from self._write()
        if self._progress is not None:
            self._progress(self.report())
        if self._at <= self._last:
            yield from self._read()

    def _write(self) -> Operation[None]:
        sequence = self._part[-1].offset
        rows = batch_of_entries(self._part, carry=False)
        written = (self._target, rows, None, self._producer, sequence)
        try:
            yield from append(*written, after=self._done)
        except StaleSequence:
            # Another client has written a part of this range.
            newest = yield from newest_sequence(self._target.key, self._producer)
            if newest is None or newest == self._done:
                raise
            self._done, self._part = newest, []
            self._at = self._next = max(self._at, newest + 1)
            return
        self._written += len(self._part)
        self._done, self._part, self._at = sequence, [], self._next

    def report(self) -> Replayed:
        """Return how far the replay is."""
        return Replayed(
            source=self._source.name,
            into=self._target.name,
            group=self._asked.group,
            first=self._first,
            last=self._last,
            next=self._at,
            written=self._written,
            missed=self._missed,
            speed=self._asked.speed,
            producer=self._producer,
            complete=self._first > 0 and self._at > self._last,
        )

    def _open(self) -> Operation[None]:
        facts = yield from info(self._source)
        if not facts.exists:
            raise UnknownStream(self._source.name)
        first = facts.first if self._asked.first is None else self._asked.first
        last = facts.last if self._asked.last is None else min(self._asked.last, facts.last)
        self._producer = self._asked.producer or default_producer(self._asked, facts.created_ms)
        if self._asked.group is not None:
            yield from self._open_group()
        done = yield from newest_sequence(self._target.key, self._producer)
        self._done = done or 0
        self._first, self._last = max(first, 1), last
        self._at = self._next = max(self._first, 0 if done is None else done + 1)

    def _open_group(self) -> Operation[None]:
        """Create the sandbox group, unless it exists, after what its stream holds."""
        options = GroupOptions("last")
        handle = GroupHandle(self._target, self._asked.group or "", "replay", options)
        yield from grouping.read(handle, 0, None, None, None)

    def _read(self) -> Operation[None]:
        wanted = min(self._last - self._at + 1, _PART_MESSAGES)
        passage = yield from read_from(self._source, self._at, wanted, None, whole=False)
        if passage.gap is not None:
            self._missed += min(passage.gap[1], self._last) - self._at + 1
        messages = [one for one in passage.messages if one.offset <= self._last]
        self._part = part = self._cut(messages)
        if len(part) < len(messages):
            self._next = part[-1].offset + 1
        else:
            self._next = min(passage.next, self._last + 1)
            if self._next == self._at:
                # Nothing is there, although it is in the range: the store has lost it.
                self._next = self._last + 1
        if not part:
            self._at = self._next
        elif self._began is None:
            self._began = (self._clock(), part[0].time_ms)

    def _cut(self, messages: list[Message[Any]]) -> list[Message[Any]]:
        """Return the messages that are written together, which depends only on them."""
        size = 0
        for place, message in enumerate(messages):
            size += len(message.value)
            late_ms = message.time_ms - messages[0].time_ms
            slow = self._asked.speed is not None and late_ms > _PART_MS * self._asked.speed
            if place and (slow or size > _PART_BYTES):
                return messages[:place]
        return messages


def default_producer(asked: ReplayRequest, created_ms: int) -> str:
    """Return the producer of a replay: the same for the same range at the same speed."""
    words = (asked.source, created_ms, asked.first, asked.last, asked.speed)
    spelled = "\n".join(f"{len(str(word))} {word}" for word in words)
    return f"replay:{hashlib.sha256(spelled.encode()).hexdigest()[:24]}"
