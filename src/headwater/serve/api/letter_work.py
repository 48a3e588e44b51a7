"""The work of a job on dead letters: step by step over its places, at a rate."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from headwater.errors import InvalidInput
from headwater.failures import ALL_LETTERS, LetterFilter
from headwater.log import letter_walks
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.letter_walks import LetterAction
from headwater.queue import dead_letters as queue_letters
from headwater.queue.handles import QueueHandle
from headwater.serve.api.groups import RangeOfOffsets

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater
    from headwater.serve.api.letter_jobs import LetterPlace

# So many letters are moved in one step at most, and so many steps a second at a rate.
_STEP: Final = 500
_STEPS_PER_S: Final = 5
_MOST_NAMED: Final = 100_000


class _Part(Protocol):
    """Letters of one place."""

    async def step(self, work: LetterWork, most: int) -> int | None:
        """Move up to ``most`` letters; returns how many fitted, None when there are no more."""


class LetterWork:
    """What is left to do; ``looked``, ``done`` and ``gone`` count letters."""

    def __init__(
        self,
        hw: AsyncHeadwater,
        action: LetterAction,
        matching: LetterFilter | None,
        rate_per_s: int | None,
    ) -> None:
        self.hw = hw
        self.action = action
        self.matching = matching or ALL_LETTERS
        self.looked = self.done = self.gone = 0
        self._rate = rate_per_s
        self._most = _STEP if rate_per_s is None else min(-(-rate_per_s // _STEPS_PER_S), _STEP)
        self._parts: deque[_Part] = deque()

    async def open(self, places: list[LetterPlace]) -> int:
        """Look where the letters of all places end now; returns how many lie there.

        Raises UnknownGroup.
        """
        total = 0
        for place in places:
            if place.queue is not None:
                total += await self._open_queue(place.queue, place.ids)
            else:
                total += await self._open_group(place)
        return total

    async def _open_queue(self, name: str, ids: list[str] | None) -> int:
        if ids is not None:
            self._parts.append(_NamedLetters(name, None, iter(ids)))
            return len(ids)
        handle = QueueHandle(name, set(), "server")
        end_ms = await self.hw.store.run(queue_letters.end_of_letters(handle))
        self._parts.append(_QueuePart(handle, end_ms))
        return (await self.hw.queue(name).stats()).dead

    async def _open_group(self, place: LetterPlace) -> int:
        stream, group = place.stream or "", place.group or ""
        if place.offsets is not None:
            total = sum(
                one.last - one.first + 1 if isinstance(one, RangeOfOffsets) else 1
                for one in place.offsets
            )
            if total > _MOST_NAMED:
                raise InvalidInput(
                    f"these are {total} offsets; name {_MOST_NAMED} at most, or use matching"
                )
            await self.hw.stream(stream).group(group).info()
            self._parts.append(_NamedLetters(stream, group, _each(place.offsets)))
            return total
        handle = GroupHandle(StreamHandle(stream, set()), group, "server")
        end = await self.hw.store.run(letter_walks.end_of_letters(handle))
        self._parts.append(_GroupPart(handle, end))
        return (await self.hw.stream(stream).group(group).info()).dead

    async def step(self) -> float | None:
        """Do a part of the work; returns how many seconds to wait then, None at the end."""
        if not self._parts:
            return None
        moved = await self._parts[0].step(self, self._most)
        if moved is None:
            self._parts.popleft()
            return 0.0
        return moved / self._rate if self._rate else 0.0


class _GroupPart:
    """The letters of a group that fit, from the oldest on."""

    def __init__(self, handle: GroupHandle, end: int) -> None:
        self._handle = handle
        self._end = end
        self._place = 0

    async def step(self, work: LetterWork, most: int) -> int | None:
        if self._place < 0:
            return None
        found = await work.hw.store.run(
            letter_walks.walk(
                self._handle, work.action, work.matching, self._place, self._end, most
            )
        )
        self._place = found.place
        work.looked += found.looked
        work.done += found.done
        work.gone += found.gone
        return found.fitted


class _QueuePart:
    """The letters of a queue that fit, from the oldest on."""

    def __init__(self, handle: QueueHandle, end_ms: int) -> None:
        self._handle = handle
        self._end_ms = end_ms
        self._place: bytes | None = b""

    async def step(self, work: LetterWork, most: int) -> int | None:
        if self._place is None:
            return None
        found = await work.hw.store.run(
            queue_letters.walk(
                self._handle, work.action, work.matching, self._place, self._end_ms, most
            )
        )
        self._place = found.place
        work.looked += found.looked
        work.done += found.done
        return found.fitted


class _NamedLetters:
    """Letters that were named: by offsets of a group's stream, or by ids of a queue."""

    def __init__(self, name: str, group: str | None, letters: Iterator[int | str]) -> None:
        self._name = name
        self._group = group
        self._letters = letters

    async def step(self, work: LetterWork, most: int) -> int | None:
        some = list(islice(self._letters, most))
        if not some:
            return None
        work.looked += len(some)
        if self._group is None:
            queue = work.hw.queue(self._name)
            act = queue.redrive if work.action == "redrive" else queue.discard
            work.done += await act([str(one) for one in some])
            return len(some)
        group = work.hw.stream(self._name).group(self._group)
        offsets = [int(one) for one in some]
        if work.action == "redrive":
            done, gone = await group.redrive(letters=offsets)
            work.done, work.gone = work.done + done, work.gone + gone
        else:
            work.done += await group.discard(offsets)
        return len(some)


def _each(offsets: list[int | RangeOfOffsets]) -> Iterator[int | str]:
    for one in offsets:
        if isinstance(one, RangeOfOffsets):
            yield from range(one.first, one.last + 1)
        else:
            yield one
