"""Which rights a user of the store needs, and which of them it lacks.

Commands that a function runs are checked against the user who called it, so they count, too.
They are read from the library itself, so that the list stays true when the functions change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import redis

from headwater.errors import AccessDenied
from headwater.store.library import library, name_in_server

KEYS = "~hw:*"
_KEY = "hw:{doctor}"
# What the client itself sends: to connect, to call, to block; then what a cluster needs as well.
SENT = (
    *("client|setname", "client|id", "client|unblock"),
    *("info", "fcall", "fcall_ro", "function|load", "blpop", "xread"),
)
_SENT_TO_CLUSTER = ("cluster|slots", "asking")
# Arguments that the server's dry run accepts; the other commands take any number of keys.
_SAMPLES: dict[str, tuple[Any, ...]] = {
    "client|setname": ("doctor",),
    "client|id": (),
    "client|unblock": (0,),
    "info": (),
    "fcall": (name_in_server("hw_version"), 1, _KEY),
    "fcall_ro": (name_in_server("hw_version"), 1, _KEY),
    "function|load": ("",),
    "blpop": (_KEY, 0),
    "xread": ("STREAMS", _KEY, 0),
    "time": (),
    "cluster|slots": (),
    "asking": (),
}
_MOST_ARGUMENTS = 6


@cache
def needed(cluster: bool) -> tuple[str, ...]:
    """Return every command that a user must be allowed to run, as access rules name them."""
    calls = re.findall(r"redis\.p?call\(\s*'([A-Z]+)'(?:,\s*'([A-Z]+)')?", library().source)
    inside = {"|".join(filter(None, words)).lower() for words in calls}
    sent = (*SENT, *(_SENT_TO_CLUSTER if cluster else ()))
    return (*sent, *sorted(inside.difference(sent)))


def rules(cluster: bool) -> str:
    """Return the rights as words of ACL SETUSER."""
    return " ".join((KEYS, *(f"+{command}" for command in needed(cluster))))


def request(cluster: bool) -> tuple[Any, ...]:
    """Return the command that asks a server which of the needed rights its caller lacks."""
    inside = [command for command in needed(cluster) if command not in (*SENT, *_SENT_TO_CLUSTER)]
    return ("FCALL", name_in_server("hw_rights"), 0, _KEY, *inside)


def check(denied: Sequence[bytes], where: str, cluster: bool) -> None:
    """Raise AccessDenied for commands that a server denies, with all of them and the cure."""
    if denied:
        names = ", ".join(command.decode() for command in denied)
        raise AccessDenied(
            where,
            f"the user may not run {names} on keys of the pattern {KEYS[1:]}",
            f"grant what is missing: ACL SETUSER ... {rules(cluster)}",
        )


def lacking(ask: Callable[..., Any], user: str, cluster: bool) -> list[str]:
    """Return the commands that the user may not run on our keys, by the server's own dry run.

    Raises redis.ResponseError when the server does not let us ask.
    """
    return [command for command in needed(cluster) if not _may_run(ask, user, command)]


def _may_run(ask: Callable[..., Any], user: str, command: str) -> bool:
    words = command.split("|")
    if command in _SAMPLES:
        return bool(ask("ACL", "DRYRUN", user, *words, *_SAMPLES[command]) == b"OK")
    for count in range(1, _MOST_ARGUMENTS):
        try:
            return bool(ask("ACL", "DRYRUN", user, *words, *[_KEY] * count) == b"OK")
        except redis.ResponseError as error:
            if "wrong number of arguments" not in str(error):
                raise
    return True
