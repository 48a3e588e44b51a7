"""The rules of limits, checked over the deliveries and handlers that were seen."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Deliveries(NamedTuple):
    """Messages that were delivered at some moment between two others, in seconds."""

    after: float
    before: float
    messages: int


def faster_than(
    deliveries: Sequence[Deliveries], per_s: float, burst: int, ahead: int = 0
) -> list[str]:
    """Return the spans of time in which more was delivered than a rate allows.

    ``ahead`` is how many may have been delivered before the span and be seen in it.
    """
    rows = sorted(deliveries)
    wrong = []
    for i, first in enumerate(rows):
        messages, end = 0, first.before
        for row in rows[i:]:
            messages += row.messages
            end = max(end, row.before)
            most = per_s * (end - first.after) + burst + ahead
            if messages > most + 1e-6:
                wrong.append(f"{messages} in {end - first.after:.4f} s, where {most:.2f} may be")
    return wrong


def more_at_once(notes: Iterable[str], most: int | None, most_of_key: int | None) -> list[str]:
    """Return the moments at which more handlers ran than limits allow, in all or of one key.

    A note is "begin key name process time", "end ..." or "died process"; notes are in the order in
    which they were made. What a process notes after it was said to die counts for nothing.
    """
    running: dict[tuple[str, str, str], None] = {}
    dead: set[str] = set()
    wrong = []
    for note in notes:
        verb, *words = note.split(" ")
        if verb == "died":
            dead.add(words[0])
            running = {one: None for one in running if one[2] not in dead}
            continue
        key, name, process = words[:3]
        if verb == "end" or process in dead:
            running.pop((key, name, process), None)
            continue
        running[key, name, process] = None
        of_key = Counter(one[0] for one in running)
        if most is not None and len(running) > most:
            wrong.append(f"{note}: {len(running)} run, where {most} may")
        if most_of_key is not None and of_key[key] > most_of_key:
            wrong.append(f"{note}: {of_key[key]} of this key run, where {most_of_key} may")
    return wrong


# ── The rules of order by tag, checked over the records of handlers ──────────────────────────────


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
