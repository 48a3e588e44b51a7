"""Groups for blocking code: thin shells over the operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from headwater.codecs import D
from headwater.log import acks, dead_letters, grouping
from headwater.log.ack_arguments import Offsets
from headwater.log.handles import GroupHandle, Start
from headwater.log.limits import MAX_READ
from headwater.log.types import DeadLetter, GroupInfo, Message, Redriven

if TYPE_CHECKING:
    from headwater.store.store import Store


class Group(Generic[D]):
    """One member's view of a consumer group."""

    def __init__(self, store: Store, handle: GroupHandle) -> None:
        self._run = store.run
        self._handle = handle
        self.name = handle.name
        self.member = handle.member
        self.stream = handle.stream.name

    def __repr__(self) -> str:
        return f"Group({self.name!r} of {self._handle.stream.name!r})"

    def read(
        self,
        count: int,
        *,
        block_ms: float | None = None,
        retry_ms: int | None = None,
        expire_ms: int | None = None,
    ) -> list[Message[D]]:
        """Take up to ``count`` messages that no other member has.

        With ``retry_ms`` each must be acknowledged, or it is redelivered after that time, to any
        member, with a higher ``attempt`` (at least once). ``expire_ms`` after its first delivery it
        is given up. Without ``retry_ms`` there is nothing to acknowledge (at most once).
        ``block_ms`` waits; blocked members are served in turn.
        """
        found = self._run(grouping.read(self._handle, count, block_ms, retry_ms, expire_ms))
        return self._handle.stream.decoded(found)

    def ack(self, *offsets: Offsets) -> int:
        """Acknowledge messages: given as such, by offset, or by range; iterables of them, too.

        A range is a ``range`` or a pair (start, end) with both ends included. Returns how many were
        pending until now; anything else is left as it is. Raises UnknownGroup.
        """
        return self._run(acks.ack(self._handle, offsets))

    def nack(self, *offsets: Offsets, delay_ms: int = 0) -> int:
        """Reject messages: they are redelivered after ``delay_ms``. Returns how many."""
        return self._run(acks.nack(self._handle, offsets, delay_ms))

    def extend(self, *offsets: Offsets, retry_ms: int) -> int:
        """Take more time: messages are redelivered ``retry_ms`` from now; returns how many."""
        return self._run(acks.extend(self._handle, offsets, retry_ms))

    def seek(self, offset: Start) -> int:
        """Set where the group stands, and return it: all before is done, all from it on is new."""
        return self._run(grouping.seek(self._handle, offset))

    def info(self) -> GroupInfo:
        """Return where the group stands; raises UnknownGroup before its first read."""
        return self._run(grouping.info(self._handle))

    def dead(self, count: int = 100) -> list[DeadLetter]:
        """Return the oldest dead letters; they stay where they are."""
        return self._run(dead_letters.dead(self._handle, count))

    def redrive(self, count: int = MAX_READ) -> Redriven:
        """Have dead letters redelivered, at once and as if they had never been tried."""
        return self._run(dead_letters.redrive(self._handle, count))

    def bury(self) -> int:
        """Give up what has expired now; returns how many messages went to the dead letters.

        Reads and ``headwater keep`` do this by themselves.
        """
        _, buried = self._run(dead_letters.give_up(self._handle))
        return buried

    def remove(self) -> bool:
        """Remove the group; retention no longer waits for it. Returns whether it existed."""
        return self._run(grouping.remove(self._handle))
