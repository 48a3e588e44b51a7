"""The history of a store is kept in the store: in fixed space, by one writer, for all who read."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import headwater
from headwater import aio
from headwater.kernel import instrument
from headwater.metrics.history import (
    RESOLUTIONS,
    SERIES_BYTES,
    STORE,
    CachedHistory,
    HistoryRecorder,
    NewPoint,
    Point,
    Series,
    keep_series,
    kept_history,
    read_points,
    write_points,
)
from headwater.metrics.sweeps import StoreSample, StoreWatch
from tests.support.entries import entries
from tests.support.instruments import Recorder
from tests.support.servers import Server


@asynccontextmanager
async def watching(url: str) -> AsyncIterator[StoreWatch]:
    async with await aio.connect(url) as hw:
        watch = StoreWatch(hw)
        try:
            yield watch
        finally:
            await watch.close()


@asynccontextmanager
async def writing(watch: StoreWatch, most: int = 100) -> AsyncIterator[HistoryRecorder]:
    recorder = HistoryRecorder(watch, most)
    try:
        yield recorder
    finally:
        await recorder.release()


def test_what_one_process_has_noted_another_reads(store_url: str, name: str) -> None:
    async def live() -> None:
        group = ("group", name, "g")
        async with watching(store_url) as watch, watching(store_url) as other:
            stream = watch.hw.stream(name)
            async with writing(watch, 10_000) as recorder:
                await stream.write_many(entries(100))
                await stream.group("g").read(30, ack_ms=60_000)
                assert await recorder.note(await watch.sample_now())
                found = await other.hw.store.run(read_points([group, ("queue", "none")], 1))
        point = next(one for one in found.series[group] if one is not None)
        assert (point.lag, point.pending) == (70, 30)
        assert 0 <= point.lag_s < 60
        assert set(found.series["queue", "none"]) == {None}, "what is not kept is not 0"
        assert len(found.times) == RESOLUTIONS[1].points

    asyncio.run(live())


def test_one_of_several_processes_writes_and_another_takes_over() -> None:
    async def live(url: str) -> None:
        async with watching(url) as one, watching(url) as two, writing(two) as second:
            async with writing(one) as first:
                assert await first.note(await one.sample_now())
                assert not await second.note(await two.sample_now())
            # The pen was put down: nobody waits until its time is over.
            assert await second.note(await two.sample_now())
            assert not await first.note(await one.sample_now())

    with Server() as server:
        asyncio.run(live(server.url))


def test_the_history_takes_the_same_space_however_long_it_lasts() -> None:
    async def live(url: str) -> None:
        async with watching(url) as watch:
            run = watch.hw.store.run
            series: list[Series] = [("stream", str(n)) for n in range(3)]

            async def turn(number: int) -> int:
                new = [
                    NewPoint(one, step_s, number * resolution.points + place, Point(lag=number))
                    for one in series
                    for step_s, resolution in RESOLUTIONS.items()
                    for place in range(0, resolution.points, resolution.points - 1)
                ]
                assert await run(write_points("me", new, 60_000))
                return (await run(kept_history())).bytes

            assert await run(write_points("me", [], 60_000))
            await run(keep_series(dict.fromkeys(series, 1), []))
            sizes = [await turn(number) for number in range(1, 4)]
            assert len(set(sizes)) == 1, sizes
            kept = await run(kept_history())
            assert 0 < kept.bytes <= len(kept.series) * SERIES_BYTES * 1.25

    with Server() as server:
        asyncio.run(live(server.url))


def test_the_history_of_an_embedded_store_survives_its_end(tmp_path: Path) -> None:
    async def write() -> None:
        async with watching(f"embedded:{tmp_path}") as watch:
            await watch.hw.queue("q").push(b"x")
            async with writing(watch) as recorder:
                assert await recorder.note(await watch.sample_now())

    async def read() -> list[Point | None]:
        async with watching(f"embedded:{tmp_path}") as watch:
            return (await watch.hw.store.run(read_points([("queue", "q")], 1))).series["queue", "q"]

    asyncio.run(write())
    assert any(point is not None and point.lag == 1 for point in asyncio.run(read()))


def test_a_sample_of_many_objects_costs_one_call() -> None:
    async def live(url: str) -> tuple[StoreSample, list[str]]:
        async with watching(url) as watch:
            for n in range(90):
                await watch.hw.stream(f"s{n}").write("t", b"v")
                await watch.hw.stream(f"s{n}").group("g").read(1)
                await watch.hw.queue(f"q{n}").push(b"v")
            await watch.sample_now()
            # However slow the machine is, names are not asked for again.
            now = watch.clock()
            watch.clock = lambda: now
            seen = Recorder()
            with instrument.installed(seen):
                async with writing(watch) as recorder:
                    for _ in range(3):
                        assert await recorder.note(await watch.sample_now(gently=True))
                cached = CachedHistory(watch.hw)
                for _ in range(10):
                    await cached.points([STORE], 1)
            return await watch.whole(60), [event.name for event in seen.events]

    with Server() as server:
        sample, ops = asyncio.run(live(server.url))
    assert (len(sample.streams), len(sample.groups), len(sample.queues)) == (90, 90, 90)
    assert {row.group.next for row in sample.groups} == {2}
    # A second of sampling costs one call for all; what is kept is looked up and noted once.
    assert Counter(ops) == {
        "store.looks": 3,
        "history.write": 5,
        "history.series": 1,
        "history.keep": 2,
        "history.read": 1,
    }


def test_what_is_sampled_together_is_what_is_said_of_each(store_url: str, name: str) -> None:
    async def live() -> None:
        async with watching(store_url) as watch:
            hw = watch.hw
            for n in range(3):
                await hw.stream(f"{name}{n}").write_many(entries(20))
                for group in "abc":
                    await hw.stream(f"{name}{n}").group(group).read(n + 1, ack_ms=60_000)
            await hw.queue(name).push_many([b"1", b"2"], delay_ms=1)
            sample = await watch.sample_now()
            mine = [one for one in sample.streams if one.name.startswith(name)]
            assert [one.name for one in mine] == [f"{name}{n}" for n in range(3)]
            for info in mine:
                assert info.last == 20
                assert info.groups == ("a", "b", "c")
            for row in sample.groups:
                if row.stream.startswith(name):
                    found = await hw.stream(row.stream).group(row.group.name).info()
                    assert found == row.group
            (queue,) = (one for one in sample.queues if one.name == name)
            assert queue.ready + queue.delayed == 2

    asyncio.run(live())


def test_a_scrub_knows_the_history() -> None:
    async def live(url: str) -> None:
        async with watching(url) as watch, writing(watch) as recorder:
            await watch.hw.queue('a"name"').push(b"x")
            assert await recorder.note(await watch.sample_now())

    with Server() as server:
        asyncio.run(live(server.url))
        with headwater.connect(server.url) as hw:
            assert hw.scrub().defects == ()
