"""The layout of a channel: which shards it has, and how that changes, without I/O.

A change of the number of shards is done in steps of one atomic call each, by any client: the
caller, consumers when they reserve, the housekeeper. After a crash the next client continues.

1. *begin*: the channel names a new layout, under a new epoch. From now on it is `closing`.
2. *closing*: each shard of the old layout is closed: it takes nothing more, and refuses whoever
   comes with the old layout in mind. Leases that are in force run to their end, and until the last
   has ended nothing is reserved: so no member is ever with two consumers.
3. *moving*: members go page by page: into their new shard, then out of the old. A page that is put
   twice is folded, as any add is. Consumers work on the new shards meanwhile.
4. *settled*: the old shards are empty, and leave a mark for a week.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from headwater.errors import LayoutLost
from headwater.ick.keys import CHANNELS, channel_key, shard_key
from headwater.ick.limits import MOVE_MEMBERS, check_shards
from headwater.ick.replies import MovedRow, SeenLayout
from headwater.ick.types import Layout
from headwater.kernel.inputs import LEASE, Duration, check_ms, check_name, refuse_own_name
from headwater.store.call import Argument, Call, Count, Operation
from headwater.store.faults import Refusal

DEFAULT_SHARDS = 8
LEASE_MS = 30_000
# How often a call follows a layout that changes during the call.
_PATIENCE = 20
_ALL_PAGES = 2**31


class ChannelHandle:
    """A channel as its operations see it: who consumes, and the layout as last seen.

    ``view`` is shared by threads, so an operation reads it once and uses that.
    """

    def __init__(
        self, name: str, wanted: int | None, consumer: str, lease_ms: Duration, registered: set[str]
    ) -> None:
        self.key = channel_key(name)
        self.name = name
        self.wanted = DEFAULT_SHARDS if wanted is None else check_shards(wanted)
        self.consumer = check_name(consumer, "consumer")
        self.lease_ms = check_ms(lease_ms, LEASE, 1)
        self.turn = -1
        self._registered = registered
        self._view: SeenLayout | None = None

    def open(self) -> Operation[SeenLayout]:
        """Return the layout as last seen; the first to open a channel decides how many shards."""
        if self._view is not None:
            return self._view
        return (yield from self.renew_view())

    def renew_view(self) -> Operation[SeenLayout]:
        """Read the layout again; a channel that is half deleted is deleted first."""
        while True:
            refuse_own_name(self.name, "channel")
            reply = yield Call("hw_channel_open", self.key, (self.wanted,), repeatable=True)
            view = SeenLayout.of(reply)
            if view.phase != "deleting":
                break
            yield from _delete_all(self, view)
        # A channel may have the name of a stream, which this client has registered, too.
        if (mark := f"channel {self.name}") not in self._registered:
            yield Call("hw_registry_add", CHANNELS, (self.name,), repeatable=True)
            self._registered.add(mark)
        # During a change every client reads it each time, to notice its end and to help.
        self._view = None if view.phase else view
        return view

    def look(self) -> Operation[SeenLayout | None]:
        """Return the layout as it is now, without creating a channel."""
        reply = yield Call("hw_channel_view", self.key, read_only=True)
        return None if reply is None else SeenLayout.of(reply)

    def forget(self) -> None:
        """Read the layout again at the next use, and register the channel again."""
        self._view = None
        self._registered.discard(f"channel {self.name}")

    def shard_key(self, epoch: int, shard: int) -> str:
        """Return the key of a shard."""
        return shard_key(self.name, epoch, shard)

    def on_shard(
        self,
        function: str,
        epoch: int,
        shard: int,
        args: tuple[Argument, ...] = (),
        members: Count = 0,
    ) -> Operation[Any]:
        """Change a shard; raises Closed when it belongs to an old layout, or to one that was lost.

        ``members`` is how many that concerns, for instruments.
        """
        key = self.shard_key(epoch, shard)
        call = Call(function, key, args, repeatable=True, messages=members)
        while True:
            try:
                return (yield call)
            except Refusal as refusal:
                if refusal.code not in ("CLOSED", "UNOPENED"):
                    raise
                if refusal.code == "CLOSED" or not (yield from self._open_shard(epoch, shard)):
                    raise Closed from None

    def _open_shard(self, epoch: int, shard: int) -> Operation[bool]:
        """Open a shard that nobody has used yet; returns False when the layout does not have it.

        Then a server has lost that layout in a failover, or it was left behind long ago.
        """
        view = yield from self.look()
        if view is None or not view.has(epoch, shard):
            self.forget()
            return False
        yield Call("hw_channel_enter", self.shard_key(epoch, shard), repeatable=True)
        return True


class Closed(Exception):
    """A shard is closed: the layout has changed since it was read."""


class Patience:
    """Counts how often the layout changed under one call."""

    def __init__(self, handle: ChannelHandle) -> None:
        self._handle = handle
        self._left = _PATIENCE

    def again(self) -> Operation[SeenLayout]:
        """Read the layout again; raises LayoutLost when that was too often."""
        self._left -= 1
        if not self._left:
            raise LayoutLost(self._handle.name)
        return (yield from self._handle.renew_view())


def shard_of(member: bytes, shards: int) -> int:
    """Return the shard of a member."""
    return crc32(member) % shards


def advance(handle: ChannelHandle, view: SeenLayout, pages: int = _ALL_PAGES) -> Operation[Layout]:
    """Continue a change of layout, moving at most this many pages of members."""
    if view.phase == "closing":
        leased = yield from _close_all(handle, view)
        if leased:
            return Layout(view.shards, False, leased)
        yield from _reached(handle, view, "moving")
        view = view._replace(phase="moving")
    if view.phase == "moving":
        if (yield from _move_pages(handle, view, pages)):
            return Layout(view.shards, False, 0)
        for shard in range(view.old_shards):
            yield from handle.on_shard("hw_channel_drop", view.old_epoch, shard)
        yield from _reached(handle, view, "")
    return Layout(view.shards, True, 0)


def _reached(handle: ChannelHandle, view: SeenLayout, phase: str) -> Operation[None]:
    args = (view.epoch, view.phase, phase)
    yield Call("hw_channel_advance", handle.key, args, repeatable=True)


def _close_all(handle: ChannelHandle, view: SeenLayout) -> Operation[int]:
    leased = 0
    for shard in range(view.old_shards):
        until_ms = -1
        while until_ms < 0:
            until_ms = yield from handle.on_shard("hw_channel_close", view.old_epoch, shard)
        leased += bool(until_ms)
    return leased


def _move_pages(handle: ChannelHandle, view: SeenLayout, pages: int) -> Operation[bool]:
    """Move members to their new shards; return whether some may be left."""
    for shard in range(view.old_shards):
        key = handle.shard_key(view.old_epoch, shard)
        while True:
            call = Call("hw_channel_page", key, (MOVE_MEMBERS,), read_only=True)
            rows = MovedRow.all_of((yield call))
            if not rows:
                break
            if not pages:
                return True
            pages -= 1
            try:
                yield from _move_page(handle, view, shard, rows)
            except Closed:
                # The new layout has been replaced already, which is only possible after this move.
                return True
    return False


def _move_page(
    handle: ChannelHandle, view: SeenLayout, shard: int, rows: list[MovedRow]
) -> Operation[None]:
    places: dict[int, list[bytes]] = {}
    for row in rows:
        places.setdefault(shard_of(row.member, view.shards), []).extend(row)
    for place, found in places.items():
        count = len(found) // len(MovedRow._fields)
        yield from handle.on_shard("hw_channel_put", view.epoch, place, tuple(found), count)
    members = tuple(row.member for row in rows)
    yield from handle.on_shard("hw_channel_forget", view.old_epoch, shard, members, len(members))


def reshard(handle: ChannelHandle, shards: int) -> Operation[Layout]:
    """Change the number of shards, as far as possible now; see Layout for what remains."""
    check_shards(shards)
    view = yield from handle.renew_view()
    if view.phase:
        found = yield from advance(handle, view)
        if not found.settled:
            return found
    args = (view.epoch, shards)
    reply = yield Call("hw_channel_begin", handle.key, args, repeatable=True)
    handle.forget()
    if reply is None:
        return Layout(shards, False, 0)
    return (yield from advance(handle, SeenLayout.of(reply)))


def finish_change(handle: ChannelHandle) -> Operation[Layout | None]:
    """Continue a change that any client began, as far as possible now; None without one."""
    view = yield from handle.look()
    if view is None or not view.phase:
        return None
    if view.phase == "deleting":
        yield from _delete_all(handle, view)
        return Layout(0, True, 0)
    return (yield from advance(handle, view))


def delete(handle: ChannelHandle) -> Operation[bool]:
    """Remove a channel with all its members; return whether there was one."""
    view = yield from handle.look()
    while view is not None and view.phase != "deleting":
        reply = yield Call("hw_channel_begin", handle.key, (view.epoch, 0), repeatable=True)
        view = None if reply is None else SeenLayout.of(reply)
    if view is not None:
        yield from _delete_all(handle, view)
    handle.forget()
    yield Call("hw_registry_remove", CHANNELS, (handle.name,), repeatable=True)
    return view is not None


def _delete_all(handle: ChannelHandle, view: SeenLayout) -> Operation[None]:
    layouts = ((view.epoch, view.shards), (view.old_epoch, view.old_shards))
    for epoch, shards in layouts:
        for shard in range(shards):
            yield from handle.on_shard("hw_channel_drop", epoch, shard)
    yield from _reached(handle, view, "gone")


def list_channels() -> Operation[list[str]]:
    """List the names of all channels, sorted."""
    found = yield Call("hw_registry_list", CHANNELS, read_only=True)
    return sorted(name.decode() for name in found)
