"""Alarms as the console shows them: with links and buttons, and of one kind as one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from headwater.metrics.alarms import Alarm
from headwater.serve.console.letters import Place
from headwater.serve.console.links import (
    consumer_link,
    group_link,
    query,
    queue_link,
    stream_link,
)
from headwater.serve.http.targets import path_part

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
    "reader": ("{n} SQL consumers and readers are behind, by {count} messages", "/consumers"),
    "retention": ("{n} streams keep more than their retention allows", "/streams"),
    "damaged": ("{n} queues have {count} damaged messages", "/queues"),
    "paused": ("{n} groups and queues are paused, and {count} messages wait", "/streams"),
    "unpopped": ("{n} queues have {count} messages, and nobody pops them", "/queues"),
    "slow queue": ("{n} queues have {count} messages that wait for over a minute", "/queues"),
    "silent": ("{n} processes ended without a word", "/processes"),
    "died": ("{n} parts of applications have failed", "/processes"),
    "timed": ("{n} timed jobs failed when they ran last", "/timed"),
    "overdue": ("{n} timed jobs are overdue, and no runner takes them", "/timed"),
    "instance": ("{n} instances of the farm are down", "/timelines"),
}
_LINKS: Final[dict[str, Callable[..., str]]] = {
    "group": group_link,
    "stream": stream_link,
    "queue": queue_link,
    "consumer": consumer_link,
    "consumer letters": lambda _: "/dead#of-consumers",
    "timed": lambda job: f"/timed/{path_part(job)}",
}


class AlarmButton(NamedTuple):
    """An action of the console: its words, its name, its fields, and the object it changes."""

    words: str
    do: str
    fields: dict[str, str]
    name: str


def link_of(alarm: Alarm) -> str:
    """Return the page of what an alarm is about, from the root of the console on."""
    kind, *names = alarm.about
    if alarm.members:
        return _WORDS[alarm.kind][1]
    if alarm.kind == "dead":
        return f"/dead?{query(place=_place(alarm).key)}"
    return _LINKS[kind](*names) if kind in _LINKS else f"/{kind}"


def button_of(alarm: Alarm) -> AlarmButton | None:
    """Return the action that helps, if there is one."""
    kind, *names = alarm.about
    if alarm.kind == "dead":
        # Dead letters of many places are redriven everywhere by one job.
        where = {} if alarm.members else {"place": _place(alarm).key}
        fields = {"action": "redrive", "which": "all"} | where
        return AlarmButton("Redrive all", "letters", fields, names[0])
    if alarm.members:
        return None
    if alarm.kind == "abandoned":
        fields = {"stream": names[0], "group": names[1]}
        return AlarmButton("Remove", "remove", fields, names[0])
    if alarm.kind == "paused" and kind == "group":
        fields = {"stream": names[0], "group": names[1]}
        return AlarmButton("Resume", "group-state", fields, names[0])
    if alarm.kind == "paused":
        return AlarmButton("Resume", "queue-state", {"queue": names[0]}, names[0])
    return None


def _place(alarm: Alarm) -> Place:
    _, name, *group = alarm.about
    return Place(name, group[0] if group else "")


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
    times = [one.since_ms for one in same if one.since_ms is not None]
    return same[0]._replace(
        text=_WORDS[same[0].kind][0].format(
            n=f"{len(same):,}", count=f"{sum(one.amount for one in same):,}"
        ),
        since_ms=min(times, default=None),
        first_seen=any(one.first_seen for one in same),
        detail="",
        members=tuple(same),
    )
