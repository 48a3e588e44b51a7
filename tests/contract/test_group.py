"""What a consumer group promises: each message to one member, from one position of all."""

from __future__ import annotations

import datetime as dt
import re
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from headwater import Headwater, InvalidInput, Message, Stream, UnknownGroup
from headwater.kernel.failures import Failure
from headwater.log.handles import Start
from tests.support.entries import entries, offsets, pairs
from tests.support.groups import FAR, take, tries
from tests.support.servers import until
from tests.support.watch import let_pass, server_ms


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


def test_a_count_of_zero_takes_nothing_but_makes_the_group(stream: Stream) -> None:
    stream.write_many(entries(5))
    group = stream.group("g", start="last")
    assert group.read(0, block_ms=60_000) == []
    stream.write("a", b"1")
    assert take(group, 10) == [6]


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


def test_max_pending_is_the_groups_and_can_be_changed(stream: Stream) -> None:
    stream.write_many(entries(20))
    assert take(stream.group("g", max_pending=2), 10) == [1, 2]
    assert stream.group("g").info().max_pending == 2
    assert take(stream.group("g"), 10) == []
    assert take(stream.group("g", max_pending=3), 10) == [3]
    assert take(stream.group("g", max_pending=0), 10) == list(range(4, 14))
    assert stream.group("g").info().max_pending is None


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


def calls(client: Headwater) -> int:
    """Count the function calls that the store has served so far."""
    found = [
        re.search(rb"cmdstat_fcall:calls=(\d+)", reply)
        for reply in client.store.command("INFO", "commandstats")
    ]
    return sum(int(match[1]) for match in found if match)


@pytest.mark.parametrize("ack_ms", [None, FAR])
def test_holes_cost_no_more_than_a_few_calls(
    client: Headwater, stream: Stream, ack_ms: int | None
) -> None:
    stream.write_many(entries(30_000, tags=3))
    stream.compact()
    group = stream.group("g")
    before = calls(client)
    for expected in ([29998], [29999], [30000], []):
        assert take(group, 1, ack_ms=ack_ms) == expected
    assert calls(client) - before < 40
    assert group.info().pending == (0 if ack_ms is None else 3)


def test_compacted_messages_that_are_due_cost_no_more_than_a_few_calls(
    client: Headwater, stream: Stream
) -> None:
    stream.write_many(entries(5000, tags=5000))
    group = stream.group("g")
    take(group, 5000)
    stream.write_many(entries(4000, tags=5000))
    stream.compact()
    group.nack((1, 5000))
    before = calls(client)
    assert take(group, 1) == [4001]
    assert calls(client) - before < 40
    assert group.info().pending == 1000


def test_a_large_delivery_comes_in_parts(stream: Stream) -> None:
    rows = [(f"t{i}", bytes([i]) * 1_000_000) for i in range(12)]
    for at in range(0, 12, 4):
        stream.write_many(rows[at : at + 4])
    group = stream.group("g")
    seen: list[Message] = []
    while got := group.read(100, ack_ms=FAR):
        seen += got
    assert pairs(seen) == rows
    assert group.ack((1, 12)) == 12


def test_members_of_a_paused_group_get_nothing_new_and_nothing_again(stream: Stream) -> None:
    stream.write_many(entries(4))
    group = stream.group("g", max_pending=3)
    group.read(2, ack_ms=FAR)
    assert (group.pause(), group.pause(), group.info().paused) == (True, False, True)
    assert group.nack(1) == 1
    assert group.read(4, ack_ms=FAR) == []
    assert group.ack(2) == 1
    assert stream.group("g", max_pending=2).read(4, ack_ms=FAR) == [], "a limit does not resume it"
    assert (group.info().max_pending, group.info().pending) == (2, 1)
    assert (group.resume(), group.resume(), group.info().paused) == (True, False, False)
    assert [(m.offset, m.attempt) for m in stream.group("g").read(4, ack_ms=FAR)] == [
        (1, 2),
        (3, 1),
    ]


def test_blocked_members_wait_until_the_group_is_resumed(stream: Stream) -> None:
    group = stream.group("g")
    group.read(0)
    group.pause()
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(stream.group("g").read, 1, block_ms=60_000, ack_ms=FAR)
        until(lambda: group.info().waiting == 1)
        stream.write("a", b"1")
        stream.write("b", b"2")
        assert group.info().lag == 2
        assert not blocked.done()
        group.resume()
        assert [message.offset for message in blocked.result()] == [1]
    assert group.info().waiting == 0


def test_other_groups_of_the_stream_continue(stream: Stream) -> None:
    stream.write_many(entries(2))
    for name in ("one", "two"):
        stream.group(name).read(0)
    stream.group("one").pause()
    assert stream.group("one").read(2) == []
    assert len(stream.group("two").read(2)) == 2
    with pytest.raises(UnknownGroup):
        stream.group("nobody").pause()


def test_a_group_of_a_topic_is_paused_in_every_partition(client: Headwater, name: str) -> None:
    topic = client.topic(name, partitions=2)
    topic.write_many(entries(6))
    group = topic.group("g")
    group.read(0)
    assert group.pause()
    assert group.read(6) == []
    assert all(info.paused for info in group.info())
    assert (group.resume(), group.resume()) == (True, False)
    assert len(group.read(6)) == 6


@pytest.mark.parametrize(
    "use",
    [
        lambda group: group.ack(1),
        lambda group: group.nack(1),
        lambda group: group.extend(1, ack_ms=5),
        lambda group: group.seek(1),
        lambda group: group.info(),
        lambda group: group.dead(),
        lambda group: group.redrive(),
        lambda group: group.bury(),
    ],
    ids=["ack", "nack", "extend", "seek", "info", "dead", "redrive", "bury"],
)
def test_a_group_that_never_read_is_unknown(stream: Stream, use: object) -> None:
    stream.write("a", b"1")
    assert callable(use)
    with pytest.raises(UnknownGroup) as caught:
        use(stream.group("nobody"))
    assert (caught.value.stream, caught.value.group) == (stream.name, "nobody")


def test_what_comes_due_soon_is_not_hidden_by_what_was_delivered_later(
    client: Headwater, stream: Stream
) -> None:
    stream.write_many(entries(3))
    group = stream.group("g")
    assert take(group, 1, ack_ms=1500) == [1]
    assert take(group, 1, ack_ms=FAR) == [2]
    let_pass(client, 1500)
    assert take(group, 1) == [1]
    assert take(group, 1) == [3]


def test_expiry_counts_from_the_first_delivery(client: Headwater, stream: Stream) -> None:
    stream.write_many(entries(1))
    group = stream.group("g")
    begun = server_ms(client)
    take(group, 1, ack_ms=1, expire_ms=300)
    attempts = 1
    while group.info().pending:
        let_pass(client, 3)
        again = group.read(1, ack_ms=1, expire_ms=FAR)
        attempts += len(again)
        group.nack(1, delay_ms=0)
    assert server_ms(client) - begun >= 300
    assert attempts > 1
    assert group.info().expired == 1


def test_a_letter_whose_message_is_pending_again_returns_that_message_alone(
    client: Headwater, stream: Stream
) -> None:
    stream.write_many(entries(9))
    group = stream.group("g", dead_letters=True)
    for count, lives_ms in ((2, 1), (3, FAR), (1, 1)):
        group.read(count, ack_ms=FAR, expire_ms=lives_ms)
        let_pass(client, 1)
    group.bury()
    assert group.info().dead == 3
    group.seek("first")
    assert take(group, 8) == list(range(1, 9))
    assert group.redrive() == (3, 0)
    again = group.read(20, ack_ms=FAR)
    assert [(one.offset, one.attempt) for one in again] == [(1, 1), (2, 1), (6, 1), (9, 1)]
    assert group.info().pending == 9


def test_any_number_of_failures_is_reported_at_once(stream: Stream) -> None:
    stream.write_many(entries(400))
    group = stream.group("g", dead_letters=True)
    group.read(400, ack_ms=FAR)
    group.ack(*range(2, 401, 2))
    odd = range(1, 401, 2)
    assert group.fail(*(Failure(offset, "no", 0) for offset in odd)) == 200
    assert sorted(offsets(group.read(400, ack_ms=FAR))) == [*odd]
    assert group.bury(*odd) == 200
    info = group.info()
    assert (info.dead, info.pending) == (200, 0)


def test_a_queue_takes_deliveries_and_receipts(client: Headwater, name: str) -> None:
    queue = client.queue(name)
    queue.push_many([b"%d" % i for i in range(8)])
    taken = queue.pop(8, ack_ms=FAR)
    with pytest.raises(InvalidInput):
        queue.ack(taken, taken[0].id)
    assert queue.stats().unacked == 8
    assert queue.extend(taken[0], [taken[1].receipt], ack_ms=FAR) == 2
    assert queue.ack(taken[0].receipt, taken[:3]) == 3
    assert queue.nack((taken[3], taken[4].receipt)) == 2
    assert queue.release(delivery for delivery in taken[5:]) == 3
    assert queue.stats().unacked == 0
