"""Cooling: nodes that were packed to be fast, packed again to be small.

A large batch becomes a node as its writer packed it, with a codec that is fast both ways. That node
is hot. Any client can make it cold: the same messages, compressed better, in the same place. Hot
messages are limited in number, so that a log without a housekeeper stays small: a writer that finds
too many packs smaller itself.
"""

from __future__ import annotations

from headwater.log import node
from headwater.log.fetching import fetch
from headwater.log.handles import StreamHandle
from headwater.log.replies import HotReply
from headwater.log.runs import PackedRun
from headwater.store.call import Call, Operation

# How many nodes one call lists.
_PAGE = 64


def cool(stream: StreamHandle, leave: int) -> Operation[int]:
    """Pack the hot nodes smaller, all but the newest ``leave`` messages; returns how many messages.

    Each node is replaced by an atomic call if it is still the one that was read; otherwise another
    client has done the same or better.
    """
    cooled = 0
    while True:
        call = Call("hw_stream_hot", stream.key, (leave, _PAGE), read_only=True)
        reply = HotReply.of((yield call))
        if not reply.nodes:
            return cooled
        for base, last, count, size, time, version in reply.nodes:
            if base < reply.first or not count:
                continue
            # Read without the handle's cache, which belongs to another reader.
            runs = yield from fetch(StreamHandle(stream.name, stream.registered), [(base, last)])
            if len(runs) != 1 or not isinstance(runs[0], PackedRun):
                continue
            packed = node.pack(runs[0].batch, sealed=True)
            if packed.rows == count and len(packed.blob) < size:
                words = (reply.created, base, count, time, packed.blob, base, last, version)
                done = yield Call("hw_stream_replace", stream.key, words, repeatable=True)
                cooled += count * done
        args = (reply.created, reply.mark, reply.nodes[-1].last)
        if not (yield Call("hw_stream_cooled", stream.key, args, repeatable=True)):
            return cooled
