"""A profile says how messages lie over time and in nodes; a preview, what a policy would evict."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pyarrow as pa
import pytest

import headwater
from headwater import Headwater, Stream
from headwater.log.handles import StreamHandle
from headwater.log.inspecting import histogram, stream_profile
from headwater.log.retention import RetentionPreview, preview
from headwater.log.types import Retention
from tests.support.entries import entries
from tests.support.stores import Stores
from tests.support.watch import server_ms

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def hw(stores: Stores) -> Iterator[Headwater]:
    with headwater.connect(stores.url("plain")) as hw:
        yield hw


@pytest.fixture
def stream(hw: Headwater, name: str) -> Stream:
    return hw.stream(name)


@pytest.fixture
def name() -> str:
    return f"profile-{secrets.token_hex(6)}"


def by_the_hour(stream: Stream, now_ms: int, hours: int, *, sealed: bool) -> None:
    """Write 600 messages for each hour that has passed, and twice as many for the last."""
    for hour in range(hours, 0, -1):
        count = 1200 if hour == 1 else 600
        times = [now_ms - hour * HOUR_MS + place * HOUR_MS // count for place in range(count)]
        table = pa.table({"tag": ["t"] * count, "value": [b"v" * 20] * count, "time": times})
        stream.append(table)
    if sealed:
        stream.seal()


@pytest.mark.parametrize("sample", [2, 5, 256])
def test_a_histogram_counts_every_message_once(hw: Headwater, stream: Stream, sample: int) -> None:
    now_ms = server_ms(hw)
    by_the_hour(stream, now_ms, 10, sealed=True)
    stream.write_many(entries(50))
    found = hw.store.run(stream_profile(stream.name, 1, 10_000, sample))
    bars = histogram(found, 1, 10_000, 20)
    assert sum(bar.messages for bar in bars) == stream.info().length
    assert [bar.first for bar in bars] == sorted(bar.first for bar in bars)
    assert bars[-1].to_ms >= found.time
    assert found.exact is (sample == 256)
    if sample == 256:
        # 600 messages an hour, over 20 spans of about half an hour.
        assert all(150 <= bar.messages <= 450 for bar in bars[2:16]), bars


def test_a_histogram_of_a_part_counts_that_part(hw: Headwater, stream: Stream) -> None:
    by_the_hour(stream, server_ms(hw), 10, sealed=True)
    found = hw.store.run(stream_profile(stream.name, 1201, 3000))
    bars = histogram(found, 1201, 3000, 8)
    assert bars[0].first == 1201
    assert sum(bar.messages for bar in bars) == 1800


def test_what_is_not_sealed_is_in_a_histogram(hw: Headwater, stream: Stream) -> None:
    now_ms = server_ms(hw)
    for hour in (3, 2, 1):
        times = [now_ms - hour * HOUR_MS] * 5
        stream.append(pa.table({"tag": ["t"] * 5, "value": [b"v"] * 5, "time": times}))
    bars = histogram(hw.store.run(stream_profile(stream.name, 1, 15)), 1, 15, 4)
    assert stream.info().sealed == 0
    assert sum(bar.messages for bar in bars) == 15
    assert len([bar for bar in bars if bar.messages]) > 1


def test_a_stream_without_messages_has_no_histogram(hw: Headwater, name: str) -> None:
    found = hw.store.run(stream_profile(name, 1, 10))
    assert histogram(found, 1, 10, 10) == []


def test_a_profile_tells_hot_from_cold_and_counts_holes(hw: Headwater, stream: Stream) -> None:
    for _ in range(4):
        stream.write_many(entries(600))
    hot = hw.store.run(stream_profile(stream.name, 1, 2400))
    assert (hot.all_nodes, hot.all_cold_nodes) == (4, 0)
    assert hot.hot_and_cold_bytes() == (hot.bytes, 0)
    stream.compact()
    info = stream.info()
    found = hw.store.run(stream_profile(stream.name, 1, 2400))
    assert found.holes == 2400 - info.length > 0
    assert found.all_nodes == info.nodes


@pytest.mark.parametrize(
    "policy",
    [
        Retention(max_count=700),
        Retention(max_age_ms=5 * HOUR_MS + HOUR_MS // 2),
        Retention(max_bytes=20_000),
        Retention(max_count=6000, max_age_ms=2 * HOUR_MS),
        Retention(),
    ],
)
def test_a_preview_says_what_retention_then_does(
    hw: Headwater, stream: Stream, policy: Retention
) -> None:
    by_the_hour(stream, server_ms(hw), 8, sealed=True)
    stream.write_many(entries(30))
    handle = StreamHandle(stream.name, set())
    seen = hw.store.run(preview(handle.key, policy))
    assert stream.info().first == 1, "a preview changes nothing"
    done = stream.retain(
        max_count=policy.max_count, max_age_ms=policy.max_age_ms, max_bytes=policy.max_bytes
    )
    last = stream.info().last
    assert seen == RetentionPreview(1, last, done.evicted, more=False)
