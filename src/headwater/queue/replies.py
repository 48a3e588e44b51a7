"""What the functions of a queue reply: one type per reply, with its fields in the header's order.

The reply of ``hw_queue_stats`` is name, value, name, value, ...: a new number needs a line in Lua
and a field of ``QueueStats``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from headwater.kernel.inputs import Limits
from headwater.queue.types import QueueSettings

Reply: TypeAlias = Sequence[Any]


class PushReply(NamedTuple):
    """hw_queue_push. ``new``: the queue begins. Numbers are the first and the last, or of each."""

    new: int
    numbers: list[bytes]

    @classmethod
    def of(cls, reply: Reply) -> PushReply:
        """Read the reply."""
        new, *numbers = reply
        return cls(new, numbers)


class TakenBundle(NamedTuple):
    """A bundle that was delivered; without ack it has no name."""

    name: bytes
    attempt: int
    texts: list[bytes]


class PopReply(NamedTuple):
    """hw_queue_pop. ``more``: there may be more, for which this call had no time."""

    more: int
    due_ms: int
    damaged: int
    bundles: list[TakenBundle]

    @classmethod
    def of(cls, reply: Reply) -> PopReply:
        """Read the reply."""
        return cls(
            reply[0],
            reply[1],
            reply[2],
            [TakenBundle._make(reply[i : i + 3]) for i in range(3, len(reply), 3)],
        )


class TimedBundle(NamedTuple):
    """A bundle that has a time, as it is stored there.

    ``rest_ms`` is its delay after its deadline, -1 when it is given up then. ``deadlines`` has one
    for each text, if they vary.
    """

    name: bytes
    time_ms: bytes
    rest_ms: int
    texts: list[bytes]
    deadlines: list[int]


class PageReply(NamedTuple):
    """hw_queue_page. ``after`` is where the next page begins, empty behind the last one."""

    now_ms: int
    after: bytes
    found: Reply

    @classmethod
    def of(cls, reply: Reply) -> PageReply:
        """Read the reply."""
        now_ms, after, *found = reply
        return cls(now_ms, after, found)

    def bundles(self) -> Iterator[TimedBundle]:
        """Return what was found in a part whose bundles have a time."""
        for start in range(0, len(self.found), 5):
            yield TimedBundle._make(self.found[start : start + 5])


class DueReply(NamedTuple):
    """hw_queue_due. Of ``due`` messages some are ``given_up``, and others ``resting``."""

    due: int
    given_up: int
    resting: int
    rank: int


class SettleReply(NamedTuple):
    """hw_queue_settle. ``bundles`` were looked at; the others have to be named again."""

    messages: int
    bundles: int


class LettersReply(NamedTuple):
    """hw_queue_redrive and hw_queue_discard. ``more``: another call has more to do.

    ``bundles`` of those named were looked at. The next call skips ``over`` bundles, whose letters
    are newer than the end.
    """

    messages: int
    more: int
    bundles: int
    over: int


class PurgeReply(NamedTuple):
    """hw_queue_purge. The dedupe keys of ``generation`` count no more and can be freed."""

    messages: int
    existed: int
    generation: bytes


class KeepReply(NamedTuple):
    """hw_queue_keep. ``more``: another call has more to do."""

    returned: int
    buried: int
    outlived: int
    producers: int
    more: int


def stats_of(reply: Reply) -> dict[str, Any]:
    """Read the reply of hw_queue_stats: facts about the queue, by name."""
    found = {name.decode(): value for name, value in zip(reply[::2], reply[1::2], strict=True)}
    due = found["due"]
    return {
        **found,
        "paused": bool(found["paused"]),
        "exists": bool(found["exists"]),
        "priorities": tuple(int(word) for word in found["priorities"].split(b",") if word),
        "settings": settings_of(found["settings"]),
        "waits": tuple(found["waits"][:-1]),
        "waited_ms": found["waits"][-1],
        "limits": Limits.of_stored(found["limits"]),
        "due": [(int(due[i]), due[i + 1].decode()) for i in range(0, len(due), 2)],
    }


def settings_of(text: bytes) -> QueueSettings:
    """Read the settings of a queue; an empty text stands for the defaults."""
    if not text:
        return QueueSettings()
    most, backoff, first, longest = text.decode().split(":")
    return QueueSettings(int(most) or None, backoff, int(first), int(longest))  # type: ignore[arg-type]
