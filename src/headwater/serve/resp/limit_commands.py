"""Commands that set limits: how many messages are in flight, and how fast they are delivered."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from headwater.kernel.declaring import Scope
from headwater.kernel.inputs import Limits
from headwater.serve.resp.arguments import Arguments
from headwater.serve.resp.commands import RespCommand, Words
from headwater.serve.resp.door import RespSession
from headwater.serve.resp.group_commands import look_at_group
from headwater.serve.resp.queue_commands import qstats
from headwater.serve.resp.replies import syntax_error
from headwater.serve.resp.topic_commands import known_topic, look_at_topic_group

_FIELDS: Final = {
    "INFLIGHT": "max_in_flight",
    "INFLIGHTPERKEY": "max_in_flight_per_key",
    "RATE": "rate",
    "RATEPERKEY": "rate_per_key",
}


def _limits(arguments: Arguments) -> Limits:
    """Return all limits that are to count from now on; OFF stands for none."""
    if arguments.take_option("OFF"):
        arguments.end()
        return Limits()
    found: dict[str, Any] = {}
    for option in arguments.options():
        if option not in _FIELDS:
            raise syntax_error()
        of_rate = option.startswith("RATE")
        found[_FIELDS[option]] = arguments.text() if of_rate else arguments.number()
    return Limits(**found)


def _shown(limits: Limits) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in asdict(limits).items()}


async def tlimit(session: RespSession, words: Words) -> dict[str, Any]:
    """TLIMIT: set the limits of a group."""
    arguments = Arguments(words)
    group = session.door.writes.stream(arguments.text()).group(arguments.text())
    limits = _limits(arguments)
    await group.info()
    return _shown(await group.limit(limits))


async def tplimit(session: RespSession, words: Words) -> dict[str, Any]:
    """TPLIMIT: set the limits of a group over a topic."""
    arguments = Arguments(words)
    name, group = arguments.text(), arguments.text()
    limits = _limits(arguments)
    found = (await known_topic(session, name)).group(group)
    await found.info()
    return _shown(await found.limit(limits))


async def qlimit(session: RespSession, words: Words) -> dict[str, Any]:
    """QLIMIT: set the limits of a queue."""
    arguments = Arguments(words)
    queue = session.door.queue(arguments.text())
    return _shown(await queue.limit(_limits(arguments)))


_PER_KEY = "[INFLIGHTPERKEY count] [RATEPERKEY rate]"
_SETS = "A limit that is left out is removed, and OFF removes all. Returns the previous limits."
LIMIT_COMMANDS: Final = (
    RespCommand("TLIMIT", -4, Scope.ADMIN, -1, "stream",
                f"key group [OFF] [INFLIGHT count] [RATE rate] {_PER_KEY}",
                "Sets how many messages of a group, or of each tag, are in flight, and how fast "
                f"they are delivered, as 100/s. {_SETS}", tlimit, look=look_at_group),
    RespCommand("TPLIMIT", -4, Scope.ADMIN, -1, "topic",
                f"key group [OFF] {_PER_KEY}",
                f"Sets limits for each tag of a group of a topic. {_SETS}", tplimit,
                look=look_at_topic_group),
    RespCommand("QLIMIT", -3, Scope.ADMIN, -1, "queue",
                "key [OFF] [INFLIGHT count] [RATE rate]",
                "Sets how many messages of a queue are in flight, and how fast they are delivered. "
                f"{_SETS}", qlimit, look=qstats),
)  # fmt: skip
