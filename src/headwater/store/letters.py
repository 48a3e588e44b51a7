"""Dead letters, whoever gave the messages up: one interface, and what is written once over it.

A letter box is what a group or a queue has of them. It counts its letters, returns them page by
page, says where they end now, and redrives or discards some. Those of a SQL consumer, whose effects
are in a database, can be listed here. Lists, filters, rates and walks are the same for each. A walk
ends where the letters ended when it began: a message that was redriven may fail again, and is then
a new letter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Param
from headwater.kernel.failures import Cause, LetterFilter
from headwater.kernel.headers import Sized, bytes_of, check_max_bytes, first_of
from headwater.kernel.inputs import check_int
from headwater.store.call import MAX_RATE, Operation, Pace

L = TypeVar("L", bound=Sized)
LetterAction: TypeAlias = Literal["redrive", "discard"]
# So many letters are looked at in one step.
LOOKED_AT = 1000

# Parameters of the operations on letters, which are the same for all.
ListedLetters: TypeAlias = Annotated[
    int, Param("How many dead letters at most.", least=1, most=100_000, metavar="N")
]
MovedLetters: TypeAlias = Annotated[
    int | None,
    Param("At most N dead letters.", least=1, most=1_000_000_000, metavar="N", per_request=1000),
]
FittingLetters: TypeAlias = Annotated[LetterFilter | None, Param("Those that fit all of this.")]
LettersPerS: TypeAlias = Annotated[
    int | None,
    Param(
        "At most N letters a second; Ctrl-C leaves the rest.",
        least=1,
        most=MAX_RATE,
        called="rate",
        metavar="N",
        doors=("command line",),
    ),
]
# Doors return as many as their replies hold.
ListedBytes: TypeAlias = Annotated[int | None, Param("", doors=())]


class Moved(NamedTuple):
    """How many letters were redriven or discarded, and how many had to stay.

    Those stay that are to be redriven, and whose messages the log no longer holds.
    """

    done: int
    gone: int


class LetterFacts(NamedTuple):
    """What is known of a letter, wherever it is.

    ``id`` is the offset of its message in the stream, or the id of its message in the queue.
    """

    id: str
    tag: str
    attempts: int
    cause: Cause | None
    buried_ms: int


class LetterPage(NamedTuple, Generic[L]):
    """Some letters; ``place`` is where the next page begins, None at the end."""

    letters: list[L]
    place: str | None


class WalkStep(NamedTuple):
    """What a step did: letters that were checked, that matched, that were moved, that had to stay.

    ``place`` is where the next step continues, None at the end.
    """

    looked: int
    fitted: int
    done: int
    gone: int
    place: str | None


def no_place(place: str) -> InvalidInput:
    """Return the error for a text that is no place among letters."""
    return InvalidInput(f"{place[:100]!r} is no place among letters; give next as it was returned")


class LetterList(ABC, Generic[L]):
    """The dead letters of a group, a queue or a SQL consumer; places among them are texts."""

    @abstractmethod
    def count(self) -> Operation[int]:
        """Return how many there are."""

    @abstractmethod
    def page(
        self, place: str, count: int, max_bytes: int | None = None
    ) -> Operation[LetterPage[L]]:
        """Return about ``count`` letters from a place on, with their causes, the oldest first."""

    @abstractmethod
    def facts(self, letter: L) -> LetterFacts:
        """Return what is known of a letter."""

    @abstractmethod
    def place_after(self, letter: L) -> str:
        """Return the place behind a letter."""

    def fitting(self, letters: Sequence[L], matching: LetterFilter | None) -> list[L]:
        """Return the letters that fit."""
        if matching is None:
            return list(letters)
        facts = map(self.facts, letters)
        return [
            letter
            for letter, (_, tag, attempts, cause, buried_ms) in zip(letters, facts, strict=True)
            if matching.fits(tag, cause, attempts, buried_ms)
        ]

    def listed(
        self,
        count: int,
        matching: LetterFilter | None = None,
        max_bytes: int | None = None,
        place: str = "",
    ) -> Operation[LetterPage[L]]:
        """Return the oldest ``count`` letters that fit, from a place on; they stay where they are.

        There are no more once they have ``max_bytes``.
        """
        room = check_max_bytes(max_bytes)
        letters: list[L] = []
        at: str | None = place
        while at is not None:
            wanted, left = LOOKED_AT, room
            if matching is None:
                wanted = count - len(letters)
                left = None if room is None else room - bytes_of(letters)
            page = yield from self.page(at, wanted, left)
            letters += self.fitting(page.letters, matching)
            at = page.place
            if len(letters) >= count or (room and bytes_of(letters) >= room):
                break
        some = first_of(letters[:count], room)
        cut = some and len(some) < len(letters)
        return LetterPage(some, self.place_after(some[-1]) if cut else at)


class LetterBox(LetterList[L]):
    """Letters that can be redriven and discarded, one by one: those of a group or a queue.

    ``most`` is how many letters a call of ``redrive`` and ``discard`` takes at most.
    """

    most: Mapping[LetterAction, int]

    @abstractmethod
    def page(
        self, place: str, count: int, max_bytes: int | None = None, *, newest: bool = False
    ) -> Operation[LetterPage[L]]:
        """Return about ``count`` letters from a place on, the oldest first.

        With ``newest``, the newest come first.
        """

    @abstractmethod
    def end(self) -> Operation[str]:
        """Return where the letters end now."""

    @abstractmethod
    def move(
        self, action: LetterAction, letters: Any | None, count: int, end: str = ""
    ) -> Operation[Moved]:
        """Redrive or discard letters, those named or the oldest, at most ``count``, at once.

        They are named as the methods ``redrive`` and ``discard`` of groups and queues take them.

        With ``end``, only those before it. The oldest are among those that there are when it
        begins.
        """

    @abstractmethod
    def named(self, letters: Any) -> Operation[Collection[Any]]:
        """Return letters that a caller names as a walk takes them."""

    @abstractmethod
    def is_before(self, letter: L, end: str) -> bool:
        """Return whether a letter was there when the letters ended at ``end``."""

    @abstractmethod
    def is_over(self, page: LetterPage[L], end: str) -> bool:
        """Return whether all that follows a page is behind an end."""

    @abstractmethod
    def rest_of(
        self, page: LetterPage[L], begin: str, rest: L, moved: Moved
    ) -> tuple[int, str | None]:
        """Return how many letters are behind, and where a walk continues, for ``rest`` to be next.

        The page began at ``begin``; of its letters before ``rest`` some were moved.
        """

    def act(
        self,
        action: LetterAction,
        letters: Any | None,
        matching: LetterFilter | None,
        count: int | None,
        pace: Pace,
    ) -> Operation[Moved]:
        """Redrive or discard letters: those named, those that fit, or the oldest.

        At most ``count``, or as many as one call takes: all at once, or step by step for a filter
        or a rate.
        """
        most = self.most[action]
        count = most if count is None else check_int(count, "count", 0, most)
        if letters is not None and matching is not None:
            raise InvalidInput("name letters, or say which of them are meant, not both")
        if not isinstance(matching, LetterFilter | None):
            raise InvalidInput(f"matching must be a LetterFilter, not {matching!r}")
        if matching is None and pace.check().per_s is None:
            return (yield from self.move(action, letters, count))
        named = None if letters is None else (yield from self.named(letters))
        return (yield from self.sweep(action, named, matching, count, pace))

    def sweep(
        self,
        action: LetterAction,
        named: Collection[Any] | None,
        matching: LetterFilter | None,
        count: int,
        pace: Pace,
    ) -> Operation[Moved]:
        """Redrive or discard up to ``count`` letters, step by step, of those that there are now."""
        end = yield from self.end()
        done = gone = 0
        place: str | None = ""
        while place is not None and done < count:
            most = pace.step(count - done)
            step = yield from self.walk(action, matching, place, end, most, named)
            done, gone, place = done + step.done, gone + step.gone, step.place
            yield from pace.rest(step.fitted)
        return Moved(done, gone)

    def walk(
        self,
        action: LetterAction,
        matching: LetterFilter | None,
        place: str,
        end: str,
        most: int,
        named: Collection[Any] | None = None,
    ) -> Operation[WalkStep]:
        """Look at some letters from a place on; redrive or discard ``most`` of those that fit.

        With ``named``, those named fit. A repeat of a step is harmless: a message that has failed
        again since has a letter behind the end.
        """
        page = yield from self.page(place, LOOKED_AT)
        fits = [
            letter
            for letter in self.fitting(page.letters, matching)
            if self.is_before(letter, end) and (named is None or self.facts(letter).id in named)
        ]
        some = fits[:most]
        moved = Moved(0, 0)
        if some:
            moved = yield from self.move(action, some, len(some))
        looked, following = len(page.letters), page.place
        if len(fits) > most:
            looked, following = self.rest_of(page, place, fits[most], moved)
        elif self.is_over(page, end):
            following = None
        return WalkStep(looked, len(some), *moved, following)
