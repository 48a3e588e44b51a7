"""Dead letters of a queue: messages that were given up are seen, redriven, discarded."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Annotated, Final, NamedTuple, TypeAlias

from headwater.kernel.declaring import Param, Spelling
from headwater.kernel.failures import LetterFilter
from headwater.queue.handles import QueueHandle
from headwater.queue.inspecting import (
    PAGE_MESSAGES,
    Spot,
    chosen,
    page,
    places_by_id,
    read_stats,
    stats,
)
from headwater.queue.keys import MAX_LETTERS, check_count
from headwater.queue.replies import LettersReply, Reply
from headwater.queue.settling import BUNDLES_PER_CALL, by_bundle, with_causes
from headwater.queue.types import QueueItem
from headwater.queue.upkeep import keep
from headwater.store.call import Argument, Call, Operation
from headwater.store.letters import (
    LetterAction,
    LetterBox,
    LetterFacts,
    LetterPage,
    Moved,
    no_place,
)

# A letter as dead() returned it, its place, or its id, which is looked up among all of them.
OneQueueLetter: TypeAlias = QueueItem | str
GivenQueueLetters: TypeAlias = Annotated[
    Iterable[OneQueueLetter] | None,
    Param(
        "The dead letters; without any, all of them.",
        Spelling.TEXTS,
        called="ids",
        metavar="ID",
    ),
]
# Messages of queues have no tags.
FittingQueueLetters: TypeAlias = Annotated[
    LetterFilter | None, Param("Those that fit all of this.", without=("tag",))
]
_CURE = "give several letters as dead() returned them, their places or their ids"
_FUNCTIONS: Final = {"redrive": "hw_queue_redrive", "discard": "hw_queue_discard"}


class _End(NamedTuple):
    """Where the letters of a queue ended at some time.

    ``newest_ms`` is when the newest was given up. A message that is handed out later is in a bundle
    with a larger ``number``, also if it fails within that millisecond, or the clock was stepped
    back.
    """

    newest_ms: int
    number: int

    @classmethod
    def of(cls, text: str) -> _End:
        """Return the end that ``QueueLetters.end`` returned."""
        return cls(*map(int, text.split()))


class QueueLetters(LetterBox[QueueItem]):
    """The dead letters of a queue; a place among them is a time, a bundle, and perhaps a letter."""

    most = MappingProxyType({"redrive": MAX_LETTERS, "discard": MAX_LETTERS})

    def __init__(self, queue: QueueHandle) -> None:
        self._queue = queue

    def count(self) -> Operation[int]:
        """Return how many there are, also of messages given up since the last pop."""
        return (yield from stats(self._queue)).dead

    def listed(
        self,
        count: int,
        matching: LetterFilter | None = None,
        max_bytes: int | None = None,
        place: str = "",
    ) -> Operation[LetterPage[QueueItem]]:
        """Return the oldest letters that fit, also of messages given up since the last pop."""
        _check_place(place)
        yield from keep(self._queue)
        return (yield from super().listed(count, matching, max_bytes, place))

    def page(
        self,
        place: str,
        count: int,
        max_bytes: int | None = None,  # noqa: ARG002  a page has a number of bundles
        *,
        newest: bool = False,
    ) -> Operation[LetterPage[QueueItem]]:
        """Return about ``count`` dead letters from a place among them on, with their causes.

        With ``newest`` they are read from the newest on. Messages that were given up since the last
        pop or housekeeping are not among them.
        """
        begin = place if newest else _bundle_before(place)
        spots = [Spot("dead", 0, begin.encode("utf-8", "replace"), newest=newest)]
        wanted = count if begin == place else PAGE_MESSAGES
        items, rest = yield from page(self._queue, spots, max(min(wanted, PAGE_MESSAGES), 1))
        letters = yield from with_causes(self._queue, items)
        following = rest[0].after.decode() if rest else ""
        return LetterPage(letters if newest else _behind(letters, place), following or None)

    def end(self) -> Operation[str]:
        """Make dead letters of the messages given up by now; return where the letters end."""
        yield from keep(self._queue)
        found = yield from read_stats(self._queue)
        return f"{found['newest_dead']} {found['last']}"

    def move(
        self,
        action: LetterAction,
        letters: Iterable[OneQueueLetter] | None,
        count: int,
        end: str = "",
    ) -> Operation[Moved]:
        """Redrive or discard letters, those named or the oldest, at most ``count``, at once."""
        if letters is None:
            return Moved((yield from self._move_oldest(_FUNCTIONS[action], count, end)), 0)
        places = yield from self._places_of(letters)
        words = by_bundle(places)
        total = start = 0
        while start < len(words):
            part = words[start : start + 2 * BUNDLES_PER_CALL]
            args: tuple[Argument, ...] = (count - total, 0, 0, 0, *part)
            reply = yield from self._call(_FUNCTIONS[action], args, repeatable=True)
            total, start = total + reply.messages, start + 2 * reply.bundles
        return Moved(total, 0)

    def _move_oldest(self, function: str, count: int, end: str) -> Operation[int]:
        until = _End.of(end or (yield from self.end()))
        total = over = 0
        while total < count:
            args = (count - total, *until, over)
            # A second call would affect other letters than the first, unless all are meant.
            reply = yield from self._call(function, args, repeatable=count >= MAX_LETTERS)
            total, over = total + reply.messages, reply.over
            if not reply.more:
                break
        return total

    def _call(
        self, function: str, args: tuple[Argument, ...], *, repeatable: bool
    ) -> Operation[LettersReply]:
        key, count = self._queue.key, _messages_gone
        return LettersReply(
            *(yield Call(function, key, args, repeatable=repeatable, messages=count))
        )

    def _places_of(self, letters: Iterable[OneQueueLetter]) -> Operation[list[str]]:
        """Return where letters are; ids are looked up among all of them."""
        places, ids = chosen(letters, _CURE, "dead")
        if ids:
            yield from keep(self._queue)
            places += yield from places_by_id(self._queue, ids, [Spot("dead", 0)], "dead")
        return places

    def named(self, letters: Iterable[OneQueueLetter]) -> Operation[set[str]]:
        """Return ids of letters: bundles get other names while letters are taken out of them."""
        yield from ()
        places, ids = chosen(letters, _CURE, "dead")
        return ids | {place.rpartition(".")[2] for place in places}

    def facts(self, letter: QueueItem) -> LetterFacts:
        """Return what is known of a letter."""
        return LetterFacts(letter.id, "", letter.attempt, letter.cause, letter.buried_ms or 0)

    def place_after(self, letter: QueueItem) -> str:
        """Return the place behind a letter: when it was given up, its bundle, and itself."""
        return f"{letter.buried_ms} {letter.place}"

    def is_before(self, letter: QueueItem, end: str) -> bool:
        """Return whether a letter was there when the letters ended at ``end``."""
        newest_ms, number = _End.of(end)
        bundle = int(letter.place.partition(":")[0])
        return (letter.buried_ms or 0) <= newest_ms and bundle <= number

    def is_over(self, page: LetterPage[QueueItem], end: str) -> bool:
        """Return whether all that follows a page is behind an end: letters are by time."""
        last = page.letters[-1].buried_ms if page.letters else None
        return page.place is None or (last or 0) > _End.of(end).newest_ms

    def rest_of(
        self,
        page: LetterPage[QueueItem],
        begin: str,
        rest: QueueItem,  # noqa: ARG002
        moved: Moved,
    ) -> tuple[int, str | None]:
        """Return where a walk continues: what was moved is gone, the others are looked at again.

        If somebody else has moved them, it continues behind the page.
        """
        if moved.done:
            return moved.done, begin
        return len(page.letters), page.place


def dead(
    queue: QueueHandle,
    count: int,
    matching: LetterFilter | None = None,
    max_bytes: int | None = None,
) -> Operation[list[QueueItem]]:
    """Return the oldest messages that were given up and fit; see LetterBox.listed."""
    check_count(count)
    return (yield from QueueLetters(queue).listed(count, matching, max_bytes)).letters


def _check_place(place: str) -> None:
    time_ms, _, name = place.partition(" ")
    if place and not (time_ms.isascii() and time_ms.isdecimal() and name):
        raise no_place(place)


def _bundle_before(place: str) -> str:
    """Return where the page begins that has the bundle of a place in it."""
    bundle, point, _ = place.rpartition(".")
    return bundle[:-1] if point else place


def _behind(letters: list[QueueItem], place: str) -> list[QueueItem]:
    """Return the letters behind a place; the letter that it names may be gone."""
    bundle, point, number = place.rpartition(".")
    if not point:
        return letters
    time_ms, name = bundle.split(" ", 1)
    last = (int(time_ms), name, number)
    places = [(one.buried_ms or 0, *one.place.rpartition(".")[::2]) for one in letters]
    if last in places:
        return letters[places.index(last) + 1 :]
    return [one for one, own in zip(letters, places, strict=True) if own > last]


def _messages_gone(_: Call, reply: Reply) -> int:
    messages: int = reply[0]
    return messages
