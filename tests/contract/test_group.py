"""What a consumer group promises: each message to one member, from one position of all."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from msgspec.structs import replace

from headwater import Headwater, InvalidInput, Stream, UnknownGroup
from headwater.log.handles import Start
from tests.support.entries import entries, offsets
from tests.support.groups import FAR, take, tries
from tests.support.watch import let_pass, server_ms


def test_every_message_goes_to_exactly_one_member(stream: Stream) -> None:
    stream.write_many(entries(50))
    members = [stream.group("g", member=f"m{i}") for i in range(3)]
    shares = [take(members[i % 3], 7, ack_ms=None if i % 2 else FAR) for i in range(8)]
    assert [offset for share in shares for offset in share] == list(range(1, 51))
    assert all(take(member, 10) == [] for member in members)


def test_groups_do_not_disturb_each_other(stream: Stream) -> None:
    stream.write_many(entries(10))
    for name in ("a", "b", "a:pending", "ä", "a:box:m"):
        assert take(stream.group(name), 10) == list(range(1, 11))
    stream.group("a").ack((1, 10))
    assert stream.group("a:pending").info().pending == 10
    assert stream.group("b").info().pending == 10


def test_the_position_lives_in_the_log(client: Headwater, name: str) -> None:
    client.stream(name).write_many(entries(10))
    assert take(client.stream(name).group("g"), 4) == [1, 2, 3, 4]
    assert take(client.stream(name).group("g"), 4) == [5, 6, 7, 8]
    assert client.stream(name).group("g").info().next == 9


def test_messages_come_whole_and_with_their_attempt(client: Headwater, stream: Stream) -> None:
    stream.write_many(entries(3))
    group = stream.group("g")
    plain = [m for m in stream.read(1, 3) if m]
    for attempt in (1, 2):
        expected = [replace(m, attempt=attempt) for m in plain]
        assert group.read(3, ack_ms=1) == expected
        let_pass(client, 1)
    assert tries(group.read(3)) == [(1, 3), (2, 3), (3, 3)]
    assert group.info().pending == 0


def test_without_retry_taking_a_message_is_all(stream: Stream) -> None:
    stream.write_many(entries(5))
    group = stream.group("g")
    assert take(group, 3, ack_ms=None) == [1, 2, 3]
    info = group.info()
    assert (info.next, info.ack_offset, info.pending, info.lag) == (4, 4, 0, 2)
    assert group.ack((1, 3)) == 0
    assert group.nack((1, 3)) == 0


def test_a_count_of_zero_takes_nothing_but_makes_the_group(stream: Stream) -> None:
    stream.write_many(entries(5))
    group = stream.group("g", start="last")
    assert group.read(0, block_ms=60_000) == []
    stream.write("a", b"1")
    assert take(group, 10) == [6]


# ── Where a group starts ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("start", "gets"),
    [("first", [4, 5, 6]), ("last", []), (4, [4, 5, 6]), (6, [6]), (7, []), (2, [4, 5, 6])],
)
def test_a_new_group_starts_where_it_is_told(stream: Stream, start: Start, gets: list[int]) -> None:
    stream.write_many(entries(6))
    stream.evict(3)
    group = stream.group("g", start)
    assert take(group, 10) == gets
    stream.write("a", b"1")
    assert take(group, 10) == [7]


def test_a_new_group_starts_at_a_time(stream: Stream) -> None:
    times = [1_000, 2_000, 3_000, 4_000]
    stream.append(pa.table({"tag": list("abcd"), "value": [b""] * 4, "time": times}))
    at = dt.datetime(1970, 1, 1, 0, 0, 3, tzinfo=dt.UTC)
    assert take(stream.group("g", at), 10) == [3, 4]
    assert take(stream.group("h", at + dt.timedelta(days=1)), 10) == []


def test_a_known_group_ignores_where_it_would_start(stream: Stream) -> None:
    stream.write_many(entries(6))
    assert take(stream.group("g", 3), 1) == [3]
    assert take(stream.group("g", "first"), 1) == [4]
    assert take(stream.group("g", 99), 1) == [5]


@pytest.mark.parametrize("start", ["first", "last", 1])
def test_a_group_may_be_there_before_the_stream(stream: Stream, start: Start) -> None:
    group = stream.group("g", start)
    assert take(group, 10) == []
    info = group.info()
    assert (info.next, info.lag, info.pending) == (1, 0, 0)
    stream.write_many(entries(3))
    assert take(group, 10) == [1, 2, 3]


def test_a_start_beyond_the_end_is_refused(stream: Stream) -> None:
    stream.write_many(entries(3))
    with pytest.raises(InvalidInput, match="holds 1 to 3"):
        stream.group("g", 5).read(1)
    assert stream.info().groups == ()


# ── max_pending ──────────────────────────────────────────────────────────────────────────────


def test_max_pending_stops_new_messages_but_not_redelivered_ones(stream: Stream) -> None:
    stream.write_many(entries(20))
    group = stream.group("g", max_pending=5)
    assert take(group, 3) == [1, 2, 3]
    assert take(group, 10) == [4, 5]
    assert take(group, 10) == []
    group.nack(1, 2)
    assert take(group, 10) == [1, 2]
    assert take(group, 10) == []
    assert group.ack(4) == 1
    group.nack(3)
    assert take(group, 10) == [3, 6]
    assert group.info().pending == 5
    assert take(group, 10) == []


def test_max_pending_is_the_groups_and_can_be_changed(stream: Stream) -> None:
    stream.write_many(entries(20))
    assert take(stream.group("g", max_pending=2), 10) == [1, 2]
    assert stream.group("g").info().max_pending == 2
    assert take(stream.group("g"), 10) == []
    assert take(stream.group("g", max_pending=3), 10) == [3]
    assert take(stream.group("g", max_pending=0), 10) == list(range(4, 14))
    assert stream.group("g").info().max_pending is None


def test_max_pending_does_not_bind_reads_without_retry(stream: Stream) -> None:
    stream.write_many(entries(20))
    group = stream.group("g", max_pending=3)
    assert take(group, 2) == [1, 2]
    assert len(take(group, 10, ack_ms=None)) == 1
    assert group.info().pending == 2


# ── Seeking ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("target", "stands", "gets"),
    [
        (1, 1, list(range(1, 11))),
        (5, 5, list(range(5, 11))),
        (10, 10, [10]),
        (11, 11, []),
        ("first", 1, list(range(1, 11))),
        ("last", 11, []),
        (dt.datetime(1970, 1, 1, 0, 0, 7, tzinfo=dt.UTC), 7, [7, 8, 9, 10]),
    ],
)
def test_a_seek_makes_everything_from_there_on_new(
    stream: Stream, target: Start, stands: int, gets: list[int]
) -> None:
    times = [i * 1000 for i in range(1, 11)]
    stream.append(pa.table({"tag": ["t"] * 10, "value": [b"v"] * 10, "time": times}))
    group = stream.group("g")
    take(group, 6)
    group.ack(2, 3)
    assert group.seek(target) == stands
    info = group.info()
    assert (info.next, info.pending, info.ack_offset) == (stands, 0, stands)
    assert info.lag == len(gets)
    messages = group.read(100, ack_ms=FAR)
    assert offsets(messages) == gets
    assert {m.attempt for m in messages} <= {1}


def test_a_seek_beyond_the_end_is_refused_and_changes_nothing(stream: Stream) -> None:
    stream.write_many(entries(5))
    group = stream.group("g")
    take(group, 2)
    before = group.info()
    with pytest.raises(InvalidInput, match="up to 6"):
        group.seek(7)
    assert group.info() == before


def test_a_seek_into_what_was_evicted_reports_the_gap(stream: Stream) -> None:
    stream.write_many(entries(10))
    group = stream.group("g", "last")
    take(group, 1)
    stream.evict(4)
    assert group.seek(2) == 2
    assert group.info().lag == 6
    assert take(group, 10) == [5, 6, 7, 8, 9, 10]
    info = group.info()
    assert (info.missed, info.gaps) == (3, ((2, 4),))


# ── Gaps, lag, members, removal ──────────────────────────────────────────────────────────────


def test_a_forced_gap_is_told_exactly(stream: Stream) -> None:
    stream.write_many(entries(100))
    group = stream.group("g")
    take(group, 10)
    group.ack((1, 4))
    stream.evict(30)
    group.nack((5, 10))
    assert take(group, 100) == list(range(31, 101))
    info = group.info()
    assert info.missed == 26
    assert sorted(info.gaps) == [(5, 10), (11, 30)]
    assert (info.pending, info.ack_offset) == (70, 31)
    stream.write_many(entries(5))
    stream.evict(103)
    assert take(group, 100) == [104, 105]
    assert group.info().missed == 29
    assert group.info().gaps[-1] == (101, 103)


def test_what_was_done_is_no_gap(stream: Stream) -> None:
    stream.write_many(entries(10))
    group = stream.group("g")
    take(group, 5, ack_ms=None)
    take(group, 2)
    group.ack(6, 7)
    stream.evict(7)
    assert take(group, 10) == [8, 9, 10]
    assert (group.info().missed, group.info().gaps) == (0, ())


def test_pending_messages_that_were_evicted_can_still_be_acked(stream: Stream) -> None:
    stream.write_many(entries(10))
    group = stream.group("g")
    take(group, 10)
    stream.evict(5)
    assert group.ack((1, 10)) == 10
    info = group.info()
    assert (info.missed, info.pending, info.ack_offset) == (0, 0, 11)


def test_lag_counts_what_was_not_delivered(stream: Stream) -> None:
    stream.write_many(entries(10))
    group = stream.group("g")
    assert take(group, 0) == []
    assert group.info().lag == 10
    take(group, 4)
    assert group.info().lag == 6
    stream.evict(7)
    assert group.info().lag == 3
    take(group, 10)
    assert group.info().lag == 0


def test_info_names_the_members_and_when_they_were_seen(client: Headwater, stream: Stream) -> None:
    before = server_ms(client)
    stream.write("a", b"1")
    stream.group("g", member="ann").read(1)
    stream.group("g", member="bob").read(1)
    info = stream.group("g").info()
    assert set(info.members) == {"ann", "bob"}
    assert all(before <= seen <= server_ms(client) for seen in info.members.values())
    assert before <= info.created_ms <= server_ms(client)
    assert info.waiting == 0
    assert (info.dead_letters, info.max_pending) == (None, None)


def test_a_removed_group_starts_again(stream: Stream) -> None:
    stream.write_many(entries(5))
    group = stream.group("g")
    take(group, 3)
    assert group.remove()
    assert not group.remove()
    assert stream.info().groups == ()
    with pytest.raises(UnknownGroup):
        group.ack(1)
    assert tries(group.read(2, ack_ms=FAR)) == [(1, 1), (2, 1)]
    assert group.info().pending == 2


def test_a_group_tells_how_old_the_oldest_is_that_it_has_not_done(
    client: Headwater, stream: Stream
) -> None:
    stamps = [1_000_000 + i for i in range(6)]
    stream.append(
        pa.record_batch(
            {"tag": ["t"] * 6, "value": [b"v"] * 6, "time": pa.array(stamps, pa.int64())}
        )
    )
    stream.write("t", b"now")
    group = stream.group("g")
    assert take(group, 0) == []
    # Of a packed batch the time of its newest message is known without opening it.
    assert (group.info().new_since_ms, group.info().pending_since_ms) == (1_000_005, None)
    assert take(group, 6, ack_ms=1) == [1, 2, 3, 4, 5, 6]
    let_pass(client, 1)
    group.ack(3)
    info = group.info()
    assert info.new_since_ms == stream.info().last_time_ms
    assert (info.pending_since_ms, info.pending_ranges, info.due) == (1_000_005, 2, 5)
    assert (info.redelivered, take(group, 5)) == (0, [1, 2, 4, 5, 6])
    take(group, 1)
    info = group.info()
    assert (info.new_since_ms, info.due, info.redelivered) == (None, 0, 5)
