"""The rules of order by tag, checked over the records of handlers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable


def overtaken(notes: Iterable[str], tags: dict[int, str], buried: frozenset[int]) -> list[str]:
    """Return what broke the rule: a message began before one of its tag before it was done.

    A note is "begin tag offset" or "done tag offset"; ``tags`` has all messages that were written.
    A message may begin again at any time; those that were buried need not be done.
    """
    of_tag: dict[str, list[int]] = defaultdict(list)
    for offset in sorted(tags):
        of_tag[tags[offset]].append(offset)
    done: dict[str, set[int]] = defaultdict(set)
    # How many messages of a tag, from its first on, are done without a gap.
    whole: dict[str, int] = defaultdict(int)
    wrong = []
    for note in notes:
        verb, tag, word = note.split(" ")
        offset, row = int(word), of_tag[tag]
        if verb == "done":
            done[tag].add(offset)
        while whole[tag] < len(row) and row[whole[tag]] in done[tag] | buried:
            whole[tag] += 1
        if verb == "begin" and row.index(offset) > whole[tag]:
            wrong.append(f"{note} before {row[whole[tag]]} was done")
    return wrong
