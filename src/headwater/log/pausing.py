"""Groups that deliver nothing until they are resumed."""

from __future__ import annotations

from headwater.log.handles import GroupHandle
from headwater.store.call import Call, Operation
from headwater.store.faults import Refusal


def pause(group: GroupHandle, on: bool) -> Operation[bool]:
    """Pause the group or resume it; returns whether that changed anything."""
    args = (group.name, str(int(on)))
    try:
        return bool((yield Call("hw_group_pause", group.key, args, repeatable=True)))
    except Refusal:
        raise group.unknown() from None
