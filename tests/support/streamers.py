"""Streamers for tests: run in a thread, or drained."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from headwater.outbox import Streamer

MakeStreamer: TypeAlias = Callable[..., Streamer]


def drain(streamer: Streamer) -> int:
    """Stream until nothing is left; returns how many rows there were."""
    total = 0
    while count := streamer.run_once():
        total += count
    return total


@contextlib.contextmanager
def streaming(*streamers: Streamer) -> Iterator[list[threading.Thread]]:
    """Let streamers run in threads; they must end by themselves when they are asked to."""
    threads = [threading.Thread(target=streamer.run) for streamer in streamers]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        for streamer in streamers:
            streamer.stop()
        for streamer, thread in zip(streamers, threads, strict=True):
            thread.join(60)
            streamer.close()
            assert not thread.is_alive()


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the outbox has logged."""
    return [record.getMessage() for record in caplog.records if record.name == "headwater.outbox"]
