"""Alarms of one kind as one line, when there are many: a thousand groups may lag at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headwater.serve.console.pages.alarms import Alarm, AlarmButton

# So many alarms of a kind are lines of their own; more become one line.
_APART: Final = 3
# What is said of n objects, by the kind of their alarm; and the page that shows all of them.
_WORDS: Final[dict[str, tuple[str, str]]] = {
    "missed": ("{n} groups missed {count} messages: evicted before they were read", "/streams"),
    "dead": ("{n} groups and queues have {count} dead letters", "/dead"),
    "letters": ("{n} SQL consumers have {count} dead letters", "/dead#of-consumers"),
    "abandoned": ("{n} groups are abandoned: no member reads them", "/streams"),
    "unread": ("{n} groups have no member, and {count} messages wait for them", "/streams"),
    "behind": ("{n} groups are behind, by {count} messages in all", "/streams"),
    "retention": ("{n} streams keep more than their retention allows", "/streams"),
    "damaged": ("{n} queues have {count} damaged messages", "/queues"),
    "paused": ("{n} queues are paused", "/queues"),
    "silent": ("{n} processes have stopped reporting", "/processes"),
    "died": ("{n} parts of applications have failed", "/processes"),
}


def gathered(alarms: Sequence[Alarm]) -> list[Alarm]:
    """Return alarms in their order; those of a kind with many as one, where its first was."""
    kinds: dict[tuple[str, str], list[Alarm]] = {}
    for one in alarms:
        kinds.setdefault((one.level, one.kind), []).append(one)
    found, told = [], set()
    for one in alarms:
        same, kind = kinds[one.level, one.kind], (one.level, one.kind)
        if one.kind not in _WORDS or len(same) <= _APART:
            found.append(one)
        elif kind not in told:
            told.add(kind)
            found.append(_together(same))
    return found


def _together(same: list[Alarm]) -> Alarm:
    first = same[0]
    text, link = _WORDS[first.kind]
    times = [one.since_ms for one in same if one.since_ms is not None]
    return first._replace(
        text=text.format(n=f"{len(same):,}", count=f"{sum(one.amount for one in same):,}"),
        link=link,
        since_ms=min(times, default=None),
        first_seen=any(one.first_seen for one in same),
        button=_button(same),
        members=tuple(same),
    )


def _button(same: list[Alarm]) -> AlarmButton | None:
    """Return what helps all of them: dead letters are redriven everywhere by one job."""
    own = same[0].button
    if same[0].kind != "dead" or own is None or any(one.button is None for one in same):
        return None
    return own._replace(fields={"action": "redrive", "which": "all"})
