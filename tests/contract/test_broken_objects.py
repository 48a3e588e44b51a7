"""One object that cannot be used, by a key of a wrong type, never hides or stops the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import headwater
from headwater import Headwater, TimedRunner, aio
from headwater.app.part_kinds import Housekeeper
from headwater.errors import BrokenObject
from headwater.metrics.sweeps import StoreWatch
from headwater.views import overview
from tests.support.commands import run
from tests.support.servers import Server, until

# The first of each kind is broken, the sound ones come later by name.
KEYS = {
    "stream": "hw:s:{a}",
    "tail": "hw:s:{a}:tail",
    "group": "hw:s:{a}:g:1:g",
    "queue": "hw:q:{a}",
    "channel": "hw:c:{a}",
}
broken_ones = pytest.mark.parametrize("broken", KEYS)


@pytest.fixture
def hw(server: Server) -> Iterator[Headwater]:
    """A store whose streams, queues and channels a, b and c each have something due."""
    with server.client() as redis:
        redis.flushall()
    with headwater.connect(server.url) as hw:
        for name in "abc":
            stream = hw.stream(name)
            stream.write_many([("tag", b"value")] * 10)
            stream.retain(max_count=5)
            group = stream.group("g", dead_letters=True)
            group.read(2, ack_ms=1, expire_ms=1)
            queue = hw.queue(name)
            queue.configure(max_attempts=1)
            queue.push(b"value")
            assert queue.pop(1, ack_ms=1)
            hw.ick_channel(name, 2).add({"member": 1.0})
        yield hw


def break_key(server: Server, key: str) -> None:
    with server.client() as redis:
        assert redis.delete(key)
        redis.set(key, "of another type")


def dead_of(hw: Headwater, name: str) -> tuple[int, int]:
    return hw.stream(name).group("g").info().dead, hw.queue(name).stats().dead


@broken_ones
def test_the_housekeeper_goes_on_says_which_one_and_why_and_its_exit_code_tells(
    server: Server, hw: Headwater, broken: str
) -> None:
    break_key(server, KEYS[broken])

    answers = []

    def kept() -> bool:
        answers.append(run(server.url, "keep", "--once"))
        return all(dead_of(hw, name) == (2, 1) for name in "bc")

    until(kept)

    assert {answer.code for answer in answers} == {1}
    kind = broken if broken in ("queue", "channel") else "stream"
    assert f"error: {kind} 'a' in the store at " in answers[-1].err
    assert "WRONGTYPE" in answers[-1].err
    assert "headwater scrub" in answers[-1].err
    assert len([line for line in answers[-1].err.splitlines() if "WRONGTYPE" in line]) == 1


@broken_ones
def test_housekeeping_by_a_client_reports_it_beside_what_was_done(
    server: Server, hw: Headwater, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    break_key(server, KEYS[broken])

    until(lambda: hw.keep() and all(dead_of(hw, name) == (2, 1) for name in "bc"))

    faults = {kept.stream: kept.fault for kept in hw.keep() if kept.fault}
    faults |= {kept.queue: kept.fault for kept in hw.keep_queues() if kept.fault}
    faults |= {kept.channel: kept.fault for kept in hw.keep_channels() if kept.fault}
    assert list(faults) == ["a"]
    assert "WRONGTYPE" in faults["a"]
    if broken in ("queue", "channel"):
        assert any("'a'" in record.getMessage() for record in caplog.records)


def test_a_broken_group_keeps_neither_other_groups_nor_retention_from_being_kept(
    server: Server, hw: Headwater
) -> None:
    stream = hw.stream("a")
    stream.group("h", dead_letters=True).read(2, ack_ms=1, expire_ms=1)
    break_key(server, "hw:s:{a}:g:1:g:due")
    stream.write_many([("tag", b"value")] * 10)

    until(lambda: "WRONGTYPE" in str(hw.keep("a")[0].fault) and stream.group("h").info().dead == 2)


@broken_ones
def test_the_housekeeper_of_an_application_goes_on(
    server: Server,
    hw: Headwater,
    broken: str,
    pool: ThreadPoolExecutor,
    caplog: pytest.LogCaptureFixture,
) -> None:
    break_key(server, KEYS[broken])
    housekeeper = Housekeeper(hw, interval_ms=10)
    keeping = pool.submit(housekeeper.run)
    try:
        until(lambda: all(dead_of(hw, name) == (2, 1) for name in "bc"))
        until(lambda: housekeeper.rounds)
    finally:
        housekeeper.stop()
    keeping.result(60)
    assert housekeeper.faults
    assert any(
        "'a'" in one.getMessage() and "WRONGTYPE" in one.getMessage() for one in caplog.records
    )


def test_a_list_of_names_that_is_broken_does_not_keep_other_kinds_from_being_kept(
    server: Server, hw: Headwater
) -> None:
    break_key(server, "hw:{streams}")

    until(
        lambda: (
            run(server.url, "keep", "--once").code == 1
            and all(hw.queue(name).stats().dead == 1 for name in "abc")
        )
    )


def test_what_is_broken_is_named_with_its_cure(server: Server, hw: Headwater) -> None:
    break_key(server, KEYS["stream"])
    with pytest.raises(BrokenObject, match=r"stream 'a' .*WRONGTYPE.*headwater scrub") as caught:
        hw.stream("a").info()
    assert (caught.value.kind, caught.value.name) == ("stream", "a")


@pytest.mark.usefixtures("hw")
@broken_ones
@pytest.mark.parametrize("words", [("stream", "list"), ("stream", "groups"), ("queue", "list")])
def test_lists_show_the_others_and_name_it(
    server: Server, broken: str, words: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    break_key(server, KEYS[broken])
    answer = run(server.url, *words, "--json")
    assert answer.code == 0
    shown = {row.get("stream") or row["name"] for row in answer.rows}
    assert shown >= {"b", "c"}
    said = [one.getMessage() for one in caplog.records]
    assert ("a" in shown) != any("left out" in line and "'a'" in line for line in said)


def test_a_message_that_was_given_up_since_the_last_pop_is_redriven_everywhere(
    hw: Headwater,
) -> None:
    queue = hw.queue("given-up")
    queue.configure(max_attempts=1)
    queue.push(b"value")
    assert queue.pop(1, ack_ms=1)
    until(lambda: queue.stats().dead == 1)
    hw.redrive_everywhere("given-up")
    assert (queue.stats().dead, queue.stats().ready) == (0, 1)


@broken_ones
def test_dead_letters_of_all_others_are_counted_and_redriven(
    server: Server, hw: Headwater, broken: str
) -> None:
    until(lambda: hw.keep() and all(dead_of(hw, name) == (2, 1) for name in "abc"))
    break_key(server, KEYS[broken])

    moved = hw.redrive_everywhere()

    assert moved.moved >= 6
    assert [dead_of(hw, name) for name in "bc"] == [(0, 0), (0, 0)]


@pytest.mark.usefixtures("hw")
@broken_ones
def test_samples_for_metrics_hold_the_others(server: Server, broken: str) -> None:
    break_key(server, KEYS[broken])

    async def sampled() -> tuple[set[str], set[str], set[str], Exception | None]:
        async with aio.connect(server.url) as client:
            sample = await StoreWatch(client).sample_now()
            return (
                {one.stream for one in sample.groups},
                {one.name for one in sample.queues},
                {one.name for one in sample.channels},
                sample.missing,
            )

    groups, queues, channels, missing = asyncio.run(sampled())
    assert groups >= {"b", "c"}
    assert queues >= {"b", "c"}
    assert channels >= {"b", "c"}
    assert missing is None


def test_a_topic_shows_the_partitions_that_are_sound(
    server: Server, hw: Headwater, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    hw.topic("t", 3)
    for place in range(3):
        hw.stream(f"t/{place}").write("tag", b"value")
    break_key(server, "hw:s:{t/1}")
    (topic,) = hw.store.run(overview.all_topics())
    assert [one.name for one in topic.partitions] == ["t/0", "t/2"]
    assert any("'t/1'" in record.getMessage() for record in caplog.records)


def test_timed_jobs_run_beside_one_whose_stream_is_broken(
    server: Server, hw: Headwater, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[str] = []

    def runner() -> TimedRunner:
        found = TimedRunner(hw)
        for name in "abc":
            found.every("1s", name=name)(lambda due: runs.append(due.job))
        return found

    until(lambda: runner().run_due() and {*runs} == {*"abc"})
    break_key(server, "hw:s:{hw.timed.a}")
    runs.clear()

    until(lambda: runner().run_due() and {*runs} == {*"bc"})

    assert any("hw.timed.a" in record.getMessage() for record in caplog.records)
    assert {row["name"] for row in run(server.url, "cron", "list", "--json").rows} == {*"bc"}
