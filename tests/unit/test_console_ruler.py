"""The picture of a ruler has every offset in its place, whatever the length of the stream."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headwater.log.inspecting import DeadOffsets, GroupRuler, PendingRange
from headwater.log.types import GroupInfo, Retention, StreamInfo
from headwater.serve.console.ruler import LEAST, WIDTH, OutsideReader, Stretch, draw, window_of

STREAM = StreamInfo(
    name="s",
    first=1,
    last=1000,
    length=1000,
    bytes=0,
    nodes=0,
    sealed=900,
    created_ms=1,
    last_time_ms=1,
    retention=Retention(),
    auto_compact=False,
    readers={},
    groups=(),
    slowest=None,
    slowest_next=None,
    slowest_idle_ms=None,
    abandoned=0,
    tail_bytes=0,
    reader_lag_ms={},
    reader_idle_ms={},
)
GROUP = GroupInfo(
    name="g",
    next=500,
    ack_offset=400,
    pending=20,
    lag=501,
    missed=0,
    gaps=(),
    expired=0,
    dead=1,
    max_pending=None,
    dead_letters=None,
    waiting=0,
    members={},
    created_ms=1,
    seen_ms=1,
    abandoned=False,
    new_since_ms=None,
    pending_since_ms=None,
    pending_ranges=1,
    due=0,
    redelivered=0,
)


@given(
    st.integers(1, 10**12),
    st.integers(1, 10**12),
    st.integers(1, 10**12),
    st.integers(1, 10**12),
)
def test_every_segment_lies_in_the_picture(first: int, last: int, low: int, high: int) -> None:
    first, last = sorted((first, last))
    low, high = sorted((low, high))
    info = replace(STREAM, first=first, last=last, sealed=(first + last) // 2)
    ruler = GroupRuler(
        name="g",
        next=low,
        ack_offset=first,
        pending=[PendingRange(low, high, 5, 100, 1), PendingRange(high, high, 1, 300, 7)],
        dead=[DeadOffsets(low, low, 3)],
        gaps=[(first, low)],
    )
    window = window_of(info, low, high)
    picture = draw(info, window, [(GROUP, ruler)], [OutsideReader("archive", "r", high)], 200)
    rows = [picture.whole, picture.focus, [picture.mark], *(row.segments for row in picture.rows)]
    for segments in rows:
        for one in segments:
            assert one.x >= 0
            assert one.width >= LEAST
            assert one.x + one.width <= WIDTH + 0.02
    assert {one.kind for one in picture.focus} <= {"archived", "evicted", "sealed", "tail"}


def test_a_row_shows_what_is_done_pending_due_dead_and_new() -> None:
    ruler = GroupRuler(
        name="g",
        next=500,
        ack_offset=400,
        pending=[PendingRange(400, 409, 1, 300, 1), PendingRange(420, 420, 2, 100, 1)],
        dead=[DeadOffsets(450, 450, 5)],
        gaps=[(1, 10)],
        start=100,
        jumps=[(200, 300)],
    )
    picture = draw(STREAM, Stretch(1, 1000), [(GROUP, ruler)], [], 200)
    found = {(one.kind, one.first, one.last) for one in picture.rows[0].segments}
    assert found == {
        ("before", 1, 99),
        ("done", 100, 499),
        ("passed", 200, 300),
        ("new", 500, 1000),
        ("missed", 1, 10),
        ("pending-1", 400, 409),
        ("due", 420, 420),
        ("dead", 450, 450),
    }
    drawn = {kind for kind, _, _ in found}
    assert picture.kinds - drawn <= {"archived", "evicted", "sealed", "tail"}
    assert picture.kinds >= drawn, "the legend names whatever is drawn"
    assert picture.rows[0].link.endswith("/groups/g")


@given(st.integers(1, 1000), st.integers(1, 1000), st.sampled_from([0.25, 0.5, 2, 4]))
def test_a_window_stays_in_the_stream(first: int, last: int, factor: float) -> None:
    first, last = sorted((first, last))
    for made in (
        Stretch(first, last).zoomed(factor, 1000),
        Stretch(first, last).moved(factor, 1000),
    ):
        assert 1 <= made.first <= made.last <= 1000
