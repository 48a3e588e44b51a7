"""A publish that was begun and left is finished by whoever comes next."""

from __future__ import annotations

import pytest

from headwater import Headwater, Published, StagingGone, StaleSequence, Stream
from headwater.log import retention, writing
from headwater.log.handles import StreamHandle
from headwater.log.keys import stream_key
from headwater.store.call import Look, Operation
from tests.support.entries import entries
from tests.support.servers import until
from tests.support.stagings import all_of, left_behind, table
from tests.support.watch import let_pass

DAY_MS = 24 * 3600 * 1000


def begin(client: Headwater, name: str, *stagings: str, sequence: int) -> None:
    """Do the first call of a publish, and no more."""
    operation = writing.publish(StreamHandle(name, set()), stagings, "p", sequence)
    call = operation.send(None)

    def one_call() -> Operation[None]:
        yield call

    client.store.run(one_call())


def half_published(client: Headwater, stream: Stream, sequence: int = 1) -> None:
    """Leave a publish of 1400 messages after its first step."""
    for number in range(2):
        stream.stage(table(entries(700, 1 + number * 700)), f"s{sequence}t{number}")
    names = [f"s{sequence}t{number}" for number in range(2)]
    begin(client, stream.name, *names, sequence=sequence)
    assert 0 < stream.info().last % 1400 < 1400


@pytest.mark.usefixtures("nodes_of_two")
def test_whoever_repeats_a_publish_that_was_left_finishes_it(
    client: Headwater, stream: Stream
) -> None:
    half_published(client, stream)
    stream.stage(table(entries(1400)), "second-attempt")
    at = stream.publish("second-attempt", producer="p", sequence=1)
    assert at == Published(1, 1400)
    assert all_of(stream) == entries(1400)
    assert left_behind(client, stream.name) == set()


@pytest.mark.usefixtures("nodes_of_two")
def test_the_next_publish_finishes_the_one_before_first(client: Headwater, stream: Stream) -> None:
    half_published(client, stream)
    stream.write("other", b"between")
    stream.stage(table(entries(5, 1401)), "next")
    at = stream.publish("next", producer="p", sequence=2)
    assert at == Published(1402, 1406)
    found = [row for row in all_of(stream) if row and row[0] != "other"]
    assert found == entries(1405)
    assert stream.publish(producer="p", sequence=1) == Published(1, 1401)


@pytest.mark.usefixtures("nodes_of_two")
def test_what_a_publish_has_begun_with_stays_with_it(client: Headwater, stream: Stream) -> None:
    half_published(client, stream)
    assert stream.unstage("s1t0", "s1t1") == 0
    with pytest.raises(StagingGone):
        stream.stage(table(entries(1)), "s1t1", place=0)
    with pytest.raises(StagingGone):
        stream.publish("s1t1", producer="q", sequence=1)
    stream.publish(producer="p", sequence=1)
    assert all_of(stream) == entries(1400)


@pytest.mark.usefixtures("nodes_of_two")
def test_what_a_publish_has_begun_with_does_not_expire(client: Headwater, stream: Stream) -> None:
    for number in range(2):
        rows = table(entries(700, 1 + number * 700))
        stream.stage(rows, f"t{number}", keep_ms=3000)
    begin(client, stream.name, "t0", "t1", sequence=1)
    let_pass(client, 3100)
    stream.publish(producer="p", sequence=1)
    assert all_of(stream) == entries(1400)


@pytest.mark.usefixtures("nodes_of_two")
def test_the_housekeeper_finishes_a_publish_that_was_left(
    client: Headwater, stream: Stream
) -> None:
    half_published(client, stream)
    (kept,) = client.keep(stream.name)
    assert kept.published == 0, "it may be under way"
    kept = client.store.run(retention.keep(StreamHandle(stream.name, set()), left_ms=0))
    assert kept.published == 1
    assert kept.changed
    assert all_of(stream) == entries(1400)
    assert client.keep(stream.name)[0].published == 0


@pytest.mark.usefixtures("nodes_of_two")
def test_a_stream_that_is_deleted_takes_its_unfinished_publish_along(
    client: Headwater, stream: Stream
) -> None:
    half_published(client, stream)
    assert stream.delete()
    assert left_behind(client, stream.name) == set()
    stream.write("new", b"1")
    assert all_of(stream) == [("new", b"1")]


@pytest.mark.usefixtures("nodes_of_two")
def test_a_write_with_a_later_sequence_stays_the_newest(client: Headwater, stream: Stream) -> None:
    half_published(client, stream, sequence=5)
    at = stream.write_many(entries(1), producer="p", sequence=6)
    stream.publish(producer="p", sequence=5)
    assert stream.write_many(entries(1), producer="p", sequence=6) == at
    with pytest.raises(StaleSequence):
        stream.publish(producer="p", sequence=4)


def staged(client: Headwater, stream: Stream, prefix: str = "") -> int:
    return client.store.run(writing.staged_bytes(StreamHandle(stream.name, set()), prefix))


def listed(client: Headwater, stream: Stream) -> int:
    key = stream_key(stream.name)

    def look() -> Operation[int]:
        (count,) = yield Look(key, (("ZCARD", f"{key}:stagings"),))
        return int(count)

    return client.store.run(look())


@pytest.mark.usefixtures("nodes_of_two")
def test_what_is_staged_is_counted_in_bytes_until_it_is_published(
    client: Headwater, stream: Stream
) -> None:
    assert staged(client, stream) == 0
    half_published(client, stream)
    left = staged(client, stream)
    stream.stage(table(entries(700)), "q-1")
    one = staged(client, stream, "q-")
    assert (one > 0, staged(client, stream)) == (True, left + one)
    stream.stage(table(entries(700)), "q-1")
    assert staged(client, stream, "q-") == one, "a repeat stages nothing"
    # A step of a publish takes its part away, and the last one the rest.
    assert 0 < left < 2 * one
    stream.publish(producer="p", sequence=1)
    assert staged(client, stream) == one
    stream.unstage("q-1")
    assert (staged(client, stream), listed(client, stream)) == (0, 0)


def test_what_expires_is_not_counted(client: Headwater, stream: Stream) -> None:
    stream.stage(table(entries(10)), "gone", keep_ms=1)
    until(lambda: staged(client, stream) == 0)
    stream.stage(table(entries(10)), "there", keep_ms=DAY_MS)
    assert staged(client, stream) == staged(client, stream, "there") > 0
    assert listed(client, stream) == 1, "the name of what has expired is forgotten"
