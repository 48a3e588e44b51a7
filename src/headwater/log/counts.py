"""How many messages a request of the log moves, counted in its reply, for instruments.

A function here is called only when an instrument is installed; see ``Call.messages``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headwater.log.group_replies import (
    BuryReply,
    ClaimedRange,
    DiscardReply,
    ExpireReply,
    GroupReadReply,
    RangesReply,
    RedriveReply,
)
from headwater.log.replies import (
    EvictReply,
    IndexedNode,
    PublishReply,
    ReadReply,
    Reply,
    RetainReply,
)
from headwater.log.runs import is_elsewhere
from headwater.store.call import Call, Look, Wait


def read(call: Call, reply: Reply) -> int:
    """Count the offsets asked for that a reply of hw_stream_read covers."""
    found = ReadReply(*reply)
    ranges = zip(call.args[2::2], call.args[3::2], strict=True)
    return sum(
        max(0, min(int(last), found.covered) - max(int(first), found.first) + 1)
        for first, last in ranges
    )


def looked_at(_: Look, found: Any) -> int:
    """Count the messages of the next node, if there is one."""
    member = found[0] if found else []
    return IndexedNode.of(member[0]).messages if member else 0


def arrived(_: Wait, reply: Any) -> int:
    """Count the messages in the entries of a stream's tail that woke a reader.

    A bare entry stands for a node, which is read by another request.
    """
    entries = [fields for _, fields in reply[0][1]] if reply else []
    return sum(
        int(fields[1]) if fields[0] == b"n" else 1 for fields in entries if not is_elsewhere(fields)
    )


def published(_: Call, reply: Reply) -> int:
    """Count the messages of a publish with the call that finishes it."""
    found = PublishReply(*reply)
    return found.last - found.first + 1 if found.done and not found.repeat else 0


def delivered(_: Call, reply: Reply) -> int:
    """Count the messages that a group delivered, at once or into a box."""
    found = GroupReadReply.of(reply)
    return _in_ranges(found.claims) + (_in_box(found.boxed) if found.boxed else 0)


def unboxed(_: Wait, reply: Any) -> int:
    """Count the messages of a claim that woke a blocked member."""
    return _in_box(reply[1]) if reply and reply[1] != b"poke" else 0


def in_ranges(_: Call, reply: Reply) -> int:
    """Count the messages that hw_group_ack or hw_group_postpone found pending."""
    return RangesReply(*reply).messages


def evicted(_: Call, reply: Reply) -> int:
    """Count the messages that hw_stream_evict evicted."""
    return max(EvictReply.of(reply).gone, 0)


def retained(_: Call, reply: Reply) -> int:
    """Count the messages that hw_stream_retain evicted."""
    return max(RetainReply(*reply).gone, 0)


def expired(_: Call, reply: Reply) -> int:
    """Count the messages that hw_group_expire dropped."""
    return ExpireReply(*reply).dropped


def buried(_: Call, reply: Reply) -> int:
    """Count the messages that became dead letters."""
    return BuryReply.of(reply).buried


def failed(_: Call, reply: int) -> int:
    """Count the messages that hw_group_fail found pending."""
    return reply


def redriven(_: Call, reply: Reply) -> int:
    """Count the dead letters that were redriven."""
    return RedriveReply(*reply).returned


def discarded(_: Call, reply: Reply) -> int:
    """Count the dead letters that hw_group_discard forgot."""
    return DiscardReply(*reply).messages


def _in_box(text: bytes) -> int:
    return _in_ranges(ClaimedRange.all_in(text.partition(b"\n")[0]))


def _in_ranges(claims: Iterable[ClaimedRange]) -> int:
    return sum(claim.last - claim.first + 1 for claim in claims)
