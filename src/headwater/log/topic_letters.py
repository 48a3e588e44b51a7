"""Dead letters of a group over a topic: the oldest of all partitions together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headwater.errors import InvalidInput
from headwater.failures import LetterFilter
from headwater.log.dead_letters import list_dead
from headwater.log.limits import MAX_BATCH_MESSAGES, check_count
from headwater.log.topic_groups import TopicGroupHandle
from headwater.log.types import TopicDeadLetter
from headwater.sizes import check_max_bytes, first_of
from headwater.store.call import Operation
from headwater.store.many import together

# The letters of so many partitions are read at once; those that are not wanted are dropped then.
TOGETHER = 4


class TopicLettersPage(NamedTuple):
    """Letters of all partitions, by time; ``places`` is where to go on in each, -1 at its end."""

    letters: list[TopicDeadLetter]
    places: list[int]


def dead(
    group: TopicGroupHandle,
    count: int,
    matching: LetterFilter | None,
    max_bytes: int | None = None,
) -> Operation[list[TopicDeadLetter]]:
    """Return the oldest ``count`` dead letters of all partitions that fit; they stay there.

    There are no more once they have ``max_bytes``.
    """
    return (yield from list_topic_dead(group, count, matching, max_bytes)).letters


def list_topic_dead(
    group: TopicGroupHandle,
    count: int,
    matching: LetterFilter | None,
    max_bytes: int | None = None,
    places: Sequence[int] = (),
) -> Operation[TopicLettersPage]:
    """Do as dead does, from a place among the letters of each partition on; -1 leaves one out."""
    check_count(count, most=MAX_BATCH_MESSAGES)
    room = check_max_bytes(max_bytes)
    members = yield from group.open()
    begin = list(places) or [0] * len(members)
    if len(begin) != len(members):
        raise InvalidInput(f"the topic has {len(members)} partitions; give a place for each")
    going_on = list(begin)
    letters: list[TopicDeadLetter] = []
    # What is later than this may come after letters that are not read yet.
    until_ms: float = float("inf")
    for start in range(0, len(members), TOGETHER):
        some = [n for n in range(start, min(start + TOGETHER, len(members))) if begin[n] >= 0]
        pages = yield from together(
            [list_dead(members[n], count, matching, room, begin[n]) for n in some]
        )
        for n, page in zip(some, pages, strict=True):
            letters += [TopicDeadLetter(n, *letter) for letter in page.letters]
            going_on[n] = page.place
            if page.place >= 0 and page.letters:
                until_ms = min(until_ms, page.letters[-1].time_ms)
        letters.sort(key=lambda letter: letter.time_ms)
        timely = [letter for letter in letters if letter.time_ms <= until_ms]
        kept = first_of(timely[:count], room)
        for letter in letters[len(kept) :]:
            at = going_on[letter.partition]
            going_on[letter.partition] = letter.offset if at < 0 else min(at, letter.offset)
            until_ms = min(until_ms, letter.time_ms)
        letters = kept
    return TopicLettersPage(letters, going_on)
