"""A replay copies a range once, in order, at its speed, and goes on after whatever ended it."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from headwater import Headwater, InvalidInput, Replayed, Stream, UnknownStream
from headwater.log.handles import StreamHandle
from headwater.log.replaying import ReplayRequest, ReplayRun
from tests.support.commands import StreamCommands
from tests.support.entries import entries

ROWS = 1700


class Clock:
    """A clock that moves when somebody waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def name() -> str:
    return f"replay-{secrets.token_hex(6)}"


@pytest.fixture
def source(client: Headwater, name: str) -> Stream:
    stream = client.stream(name)
    stream.write_many(entries(ROWS))
    stream.write("headed", b"last", headers={"k": "v"})
    return stream


def rows(stream: Stream) -> list[tuple[str, bytes]]:
    return [(one.tag, one.value) for one in stream.read(1, 10_000) if one is not None]


def test_a_range_is_copied_once_however_often_it_is_replayed(
    client: Headwater, source: Stream
) -> None:
    target = client.stream(f"{source.name}-copy")
    done = client.replay(source.name, target.name, first=101, last=1200)
    assert (done.written, done.next, done.complete) == (1100, 1201, True)
    assert rows(target) == entries(ROWS)[100:1200]
    again = client.replay(source.name, target.name, first=101, last=1200)
    assert (again.written, again.complete, again.producer) == (0, True, done.producer)
    assert len(rows(target)) == 1100
    client.replay(source.name, target.name, first=101, last=1200, producer="another")
    assert len(rows(target)) == 2200, "another producer writes it again"


def test_a_replay_without_a_range_copies_all_with_headers(
    client: Headwater, source: Stream
) -> None:
    target = client.stream(f"{source.name}-copy")
    seen: list[Replayed] = []
    done = client.replay(source.name, target.name, progress=seen.append)
    assert (done.first, done.last, done.written) == (1, ROWS + 1, ROWS + 1)
    last = target.read(ROWS + 1, 1)[0]
    assert last is not None
    assert dict(last.headers) == {"k": b"v"}
    assert [one.written for one in seen] == [0, 500, 1000, 1500, ROWS + 1]


def has_two(seen: list[Replayed]) -> bool:
    return len(seen) > 1


def test_a_replay_continues_where_it_was_stopped(client: Headwater, source: Stream) -> None:
    target = client.stream(f"{source.name}-copy")
    for written in (500, 1000, 1500):
        seen: list[Replayed] = []
        stop = partial(has_two, seen)
        done = client.replay(source.name, target.name, progress=seen.append, stop=stop)
        assert not done.complete
        assert (done.written, done.next) == (500, written + 1)
    assert client.replay(source.name, target.name).complete
    assert rows(target) == [*entries(ROWS), ("headed", b"last")]


def started(name: str, clock: Clock | None = None, **words: Any) -> ReplayRun:
    asked = ReplayRequest(name, f"{name}-copy", **words)
    return ReplayRun(asked, lambda one, _: StreamHandle(one, set()), None, None, clock or Clock())


def test_two_who_replay_the_same_at_once_write_it_once(client: Headwater, source: Stream) -> None:
    runs = [started(source.name), started(source.name)]
    while not all(run.over for run in runs):
        for run in runs:
            if not run.over:
                client.store.run(run.step())
    assert rows(client.stream(f"{source.name}-copy")) == [*entries(ROWS), ("headed", b"last")]


def test_what_was_evicted_is_missed_and_counted(client: Headwater, source: Stream) -> None:
    source.evict(300)
    target = client.stream(f"{source.name}-copy")
    done = client.replay(source.name, target.name, first=201, last=400)
    assert (done.missed, done.written, done.complete) == (100, 100, True)
    source.compact()
    whole = client.replay(source.name, target.name, first=301)
    assert whole.complete
    assert whole.written == source.info().length


def test_a_sandbox_group_gets_the_range_alone(client: Headwater, source: Stream) -> None:
    for group in ("one", "two"):
        done = client.replay(source.name, group=group, first=11, last=30, producer=group)
        assert done.into == f"{source.name}.sandbox"
        found = client.stream(done.into).group(group).read(100)
        assert [(one.tag, one.value) for one in found] == entries(ROWS)[10:30]
    assert source.info().groups == ()


@pytest.mark.parametrize(("speed", "lasts_s"), [(1.0, 90.0), (10.0, 9.0), (None, 0.0)])
def test_a_speed_keeps_the_distances_in_time(
    client: Headwater, name: str, speed: float | None, lasts_s: float
) -> None:
    times = [1_000_000 + 10_000 * place for place in range(10)]
    client.stream(name).append(
        pa.table({"tag": ["t"] * 10, "value": [b"%d" % n for n in range(10)], "time": times})
    )
    clock = Clock()
    run = started(name, clock, speed=speed)
    while not run.over:
        for pause_s in run.pauses():
            assert pause_s <= 0.1, "whoever asks for the end does not wait"
            clock.now_s += pause_s
        client.store.run(run.step())
    assert clock.now_s == pytest.approx(lasts_s, abs=0.2)
    assert [value for _, value in rows(client.stream(f"{name}-copy"))] == [
        b"%d" % n for n in range(10)
    ]


def test_what_cannot_be_replayed_is_refused(client: Headwater, source: Stream) -> None:
    wrong: list[dict[str, object]] = [
        {},
        {"into": source.name},
        {"into": "x", "first": 0},
        {"into": "x", "first": 9, "last": 8},
        {"into": "x", "speed": 0},
        {"into": "a b\n"},
    ]
    for words in wrong:
        with pytest.raises(InvalidInput):
            client.replay(source.name, **words)  # type: ignore[arg-type]
    with pytest.raises(UnknownStream):
        client.replay("never-written", "x")


@pytest.fixture
def copied(hw_stream: StreamCommands) -> str:
    hw_stream.stream.write_many(entries(30))
    return f"{hw_stream.stream.name}-copy"


def test_the_command_replays_and_says_how_to_continue(
    hw_stream: StreamCommands, copied: str
) -> None:
    words = ("--into", copied, "--first", "3", "--last", "12")
    shown = hw_stream("replay", *words)
    assert "replayed 3-12" in shown.out
    assert "10 messages" in shown.out
    (row,) = hw_stream("replay", *words, "--json").rows
    assert (row["written"], row["complete"], row["next"]) == (0, True, 13)
    assert hw_stream("replay", "--into", copied, "--speed", "fast").code == 2
