"""The page of a stream costs as much for a long stream as for a short one.

The long form prints how long a ruler of ten million messages takes.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from statistics import median

import pyarrow as pa
import pytest

import headwater
from headwater import Headwater
from headwater.kernel import instrument
from headwater.serve.console.service import Console
from tests.support.api import ApiServer
from tests.support.instruments import Recorder
from tests.support.servers import Server

LONG = int(os.environ.get("HEADWATER_LONG", "0"))
PART = 50_000


@pytest.fixture
def hw(server: Server) -> Iterator[Headwater]:
    with headwater.connect(server.url) as hw:
        yield hw


def filled(hw: Headwater, messages: int) -> str:
    """Return a stream with three groups, of which one has many pending ranges.

    Another holds up retention, by which every message is due.
    """
    stream = hw.stream(f"scale-{secrets.token_hex(4)}")
    part = min(messages, PART)
    table = pa.table({"tag": ["t"] * part, "value": [b'{"fare": 12}'] * part})
    for _ in range(messages // part):
        stream.append(table)
    group = stream.group("mail", max(messages // 2, 1))
    held = group.read(1000, ack_ms=600_000)
    group.ack(*(message.offset for message in held[::2]))
    stream.group("totals", "last").read(0)
    stream.group("slow", 1).read(0)
    stream.retain(max_age_ms=1)
    return stream.name


def test_a_long_stream_costs_as_many_calls_as_a_short_one(hw: Headwater, server: Server) -> None:
    lengths = (1000, 10_000_000 if LONG else 300_000)
    names = [filled(hw, length) for length in lengths]
    calls: list[int] = []
    with ApiServer(server.url, front=Console) as api:
        client = api.client()
        for name, length in zip(names, lengths, strict=True):
            path = f"/console/streams/{name}"
            # Its header counts what retention would evict, as far as one call does.
            due = f"{256_000 if length > PART else length:,} wait for slow".encode()
            assert due in client.get(path).body
            recorder = Recorder()
            with instrument.also_installed(recorder):
                page = client.get(path)
            assert due in page.body, "known from the first page"
            own = [event.name for event in recorder.events if event.object == name]
            # The sample that all share is made at any time.
            calls.append(len([one for one in own if one != "store.looks"]))
            assert len(page.body) < 300_000, "a page does not grow with the stream"
            took_ms = []
            for _ in range(5 * LONG):
                begun = time.perf_counter()
                client.get(path)
                took_ms.append((time.perf_counter() - begun) * 1000)
            if took_ms:
                print(f"\nthe page of {length:,} messages: {median(took_ms):.0f} ms")
    # Where it stands, three groups and their rulers, the profile, and the messages that are shown.
    assert calls[0] == calls[1] <= 11, calls
