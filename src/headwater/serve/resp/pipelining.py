"""Writes to one stream that a client sends without waiting go as one batch.

Only those whose answers cannot differ: each was checked and authorized by itself, and the first
that would be refused ends the run.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater.serve.batching import MOST_BYTES, MOST_ITEMS
from headwater.serve.resp.commands import Write
from headwater.serve.resp.session import RespSession
from headwater.serve.resp.table import call_command, find_command


def gather_writes(
    session: RespSession, write: Write, key: bytes, take: Callable[[], list[bytes] | None]
) -> tuple[Write, int, list[bytes] | None]:
    """Join the writes of single entries to the same stream that follow one.

    Returns the writes as one, how many they are, and the command behind them, if there is one.
    """
    stream, entries, size = write
    words = None
    while len(entries) < MOST_ITEMS and size < MOST_BYTES:
        words = take()
        if words is None or len(words) != 4 or words[1] != key or words[0].upper() != b"TWRITE":
            break
        try:
            follower: Write = call_command(find_command(words), session, words)
        except Exception:  # noqa: BLE001  it is called again, and answered, in its turn
            break
        entries += follower.entries
        size += follower.size
        words = None
    return Write(stream, entries, size), len(entries), words
