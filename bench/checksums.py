"""What the checksum of a message costs, client and server together."""

from __future__ import annotations

from functools import partial

from bench.harness import Pair, Row, interleave, rate
from headwater.log.keys import stream_key
from headwater.log.node import message_crc
from headwater.store.library import name_in_server

WRITES = 1000
TAG, VALUE = b"tag", b"x" * 130


def checked_write(pair: Pair) -> Row:
    """One message at a time by the same function, with a checksum and without."""
    pair.ours.stream(pair.name()).write("warm", b"up")
    write = partial(pair.peer.fcall, name_in_server("hw_stream_write"), 1)

    def checked() -> float:
        call = partial(write, stream_key(pair.name()), "", "", "", "checked", TAG, VALUE)
        return rate(WRITES, lambda: [call(message_crc(TAG, VALUE)) for _ in range(WRITES)])

    def plain() -> float:
        call = partial(write, stream_key(pair.name()), "", "", "", "plain", TAG, VALUE)
        return rate(WRITES, lambda: [call() for _ in range(WRITES)])

    a, b = interleave(checked, plain, pair.rounds)
    name = "one write with a checksum / without, messages/s"
    return Row.of(name, pair.fsync, a, b, 0.8, 0.95)
