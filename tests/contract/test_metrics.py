"""What /metrics says of a store is true, bounded, and costs the store little."""

from __future__ import annotations

import asyncio
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from prometheus_client.parser import text_string_to_metric_families

import headwater
from headwater import AllReplicasFailed, QuorumFailed, aio
from headwater.errors import InvalidInput
from headwater.kernel import instrument
from headwater.kernel.declaring import Scope
from headwater.kernel.instrument import Event, installed
from headwater.metrics.exposition import FAMILIES, Page
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
from headwater.metrics.operations import OperationMetrics, shared_counts
from headwater.metrics.sampler import Sampler
from headwater.metrics.sweeps import StoreSample, StoreWatch
from headwater.serve.api.opening import ApiSettings
from headwater.serve.limits import HttpLimits, RespLimits
from headwater.serve.listening import ListenAddress, ServerProcess
from headwater.serve.store_server import RespListening, StoreServer
from headwater.serve.tokens import Tokens
from headwater.spark.queries.notes import NotedQuery, Part, note
from headwater.timeline import Tally
from headwater.timeline.metrics import COUNTERS, DURATIONS
from tests.support.api import ApiClient, ApiServer
from tests.support.entries import entries
from tests.support.farms import DEAD, OpenFarm, Replica
from tests.support.instruments import Recorder
from tests.support.resp import RawClient
from tests.support.servers import Server, until
from tests.support.serving import ServerThread
from tests.support.stagings import table

TIMES = "operation_duration_seconds_count"
Samples: TypeAlias = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read_page(page: bytes) -> Samples:
    """Read a page as Prometheus does; every sample must belong to a family of the table."""
    found: Samples = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            key = sample.name.removeprefix("headwater_"), frozenset(sample.labels.items())
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def of(samples: Samples, name: str, **labels: str) -> float:
    """Return the one sample that has these labels, whatever its others are."""
    wanted = set(labels.items())
    (value,) = (
        value for (known, given), value in samples.items() if known == name and wanted <= given
    )
    return value


@asynccontextmanager
async def sampling(
    url: str, *, max_series: int = 10**6
) -> AsyncIterator[tuple[aio.AsyncHeadwater, Sampler]]:
    async with await aio.connect(url) as hw:
        operations = OperationMetrics()
        with instrument.installed(operations):
            watch = StoreWatch(hw)
            try:
                yield hw, Sampler(watch, operations, max_series=max_series)
            finally:
                await watch.close()


def test_a_page_says_how_every_object_stands(store_url: str, name: str) -> None:
    async def scrape() -> Samples:
        async with sampling(store_url) as (hw, sampler):
            stream = hw.stream(f'{name}"\\')
            await stream.write_many(entries(10))
            await stream.group("g").read(4, ack_ms=1, block_ms=None)
            await stream.group("g").ack(2)
            await stream.register_reader("elsewhere", 8)
            queue = hw.queue(name)
            await queue.push_many([b"1", b"2", b"3"])
            await queue.pop(ack_ms=60_000)
            await hw.ick_channel(name, shards=2).add({"a": 1.0, "b": 2.0})
            await hw.ick_channel(name).add({"a": 1.0, "b": 3.0})
            await stream.stage(table(entries(5)), f"spark-id-{name}-0-x")
            notes: dict[Part, NotedQuery] = {
                "read": NotedQuery("nightly", 4, {stream.name: 9}),
                "write": NotedQuery("nightly", 3),
            }
            for part, facts in notes.items():
                await hw.store.run(note(f"id-{name}", part, stream.name, facts))
            return read_page(await sampler.page())

    found = asyncio.run(scrape())
    stream = f'{name}"\\'
    group = {"stream": stream, "group": "g"}
    assert of(found, "stream_messages_total", stream=stream) == 10
    assert of(found, "stream_bytes", stream=stream, tier="tail") > 0
    assert of(found, "group_lag_messages", **group) == 6
    assert of(found, "group_lag_seconds", **group) < 60
    assert of(found, "group_pending_messages", **group) == 3
    assert of(found, "group_pending_ranges", **group) == 2
    assert of(found, "group_members", **group) == 1
    reader = {"stream": stream, "reader": "elsewhere"}
    assert of(found, "reader_lag_messages", **reader) == 3
    assert 0 <= of(found, "reader_lag_seconds", **reader) < 60
    assert of(found, "queue_messages", queue=name, state="unacked") == 1
    assert of(found, "queue_messages", queue=name, state="ready") == 2
    assert of(found, "ick_dirty", ick=name) == 2
    assert of(found, "ick_folded_total", ick=name) == 2
    query = {"query": f"id-{name}", "query_name": "nightly"}
    assert of(found, "spark_lag_messages", **query) == 2
    assert 0 <= of(found, "spark_lag_seconds", **query) < 60
    assert of(found, "spark_epoch", **query) == 4
    assert of(found, "spark_staged_bytes", **query) > 0
    assert of(found, "spark_running", **query) == 1
    assert of(found, "operation_messages_total", op="stream.write") == 10
    assert of(found, TIMES, op="queue.push", outcome="ok") == 1
    assert of(found, "series_complete") == 1
    assert of(found, "store_up") == 1


def test_whatever_the_number_of_scrapes_the_store_is_sampled_once(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is, the sample is not renewed meanwhile.
    monkeypatch.setattr("headwater.metrics.sampler.FRESH_S", 3600.0)

    async def scrape() -> tuple[float, float]:
        async with sampling(store_url) as (_, sampler):
            await sampler.page()
            pages = await asyncio.gather(*(sampler.page() for _ in range(50)))
            # The store of all tests holds many objects; only these lines of a page are parsed.
            listed = [re.findall(rb"^.*registry\.list.*\n", page, re.MULTILINE) for page in pages]
            counts = {of(read_page(b"".join(lines)), TIMES, op="registry.list") for lines in listed}
            return min(counts), max(counts)

    # Names of streams, of queues and of channels are listed once each.
    assert asyncio.run(scrape()) == (3, 3)


def test_a_page_has_no_more_series_than_it_may_and_says_what_is_missing() -> None:
    async def scrape(url: str) -> Samples:
        async with sampling(url, max_series=1000) as (hw, sampler):
            for n in range(150):
                await hw.stream(f"s{n:03d}").write("t", b"v")
            return read_page(await sampler.page())

    with Server() as server:
        found = asyncio.run(scrape(server.url))
    listed = [name for name, _ in found if name.startswith("stream_")]
    assert 900 < len(listed) <= 1000
    assert of(found, "series_complete") == 0
    assert of(found, "series_dropped") == pytest.approx(150 * 8 + 1 + 1 - 1000, abs=12)


def test_a_store_that_is_away_is_down_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.metrics.sampler.FRESH_S", 0.01)
    monkeypatch.setattr("headwater.metrics.sweeps._PATIENCE_S", 0.3)

    async def until(sampler: Sampler, up: int) -> None:
        while of(read_page(await sampler.page()), "store_up") != up:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def live(server: Server) -> None:
        async with sampling(server.url) as (_, sampler):
            await until(sampler, 1)
            server.kill()
            await until(sampler, 0)
            server.start()
            await until(sampler, 1)

    with Server() as server:
        asyncio.run(asyncio.wait_for(live(server), 60))


def test_processes_of_a_server_answer_with_the_sum_of_all() -> None:
    memory = shared_counts(2)
    first, second = OperationMetrics(memory, 0), OperationMetrics(memory, 1)
    for counts in (first, second, second):
        counts.end(None, Event("stream.write", "s", "ok", 0.002, 5, 7))
        counts.end(None, Event("stream.write", "s", "unknown", 99.0))
        counts.end(None, Event("of a plugin", "s", "ok", 0.0))
        counts.count("store.retry", "MOVED")
        counts.count("store.retry", "a code that nobody knows")
        counts.count("farm.repair_write_success", "a farm", 4)
        counts.change("resp_blocked", 3)
        counts.change("resp_blocked", -1)

    def page(counts: OperationMetrics) -> Samples:
        text = Page()
        counts.add_to(text)
        return read_page(text.text().encode())

    assert page(first) == page(second)
    found = page(first)
    ok = {"op": "stream.write", "outcome": "ok"}
    assert of(found, "operation_duration_seconds_bucket", le="0.0025", **ok) == 3
    assert of(found, "operation_duration_seconds_bucket", le="0.001", **ok) == 0
    assert of(found, "operation_duration_seconds_sum", **ok) == pytest.approx(0.006)
    assert of(found, "operation_messages_total", op="stream.write") == 15
    assert of(found, "outcome_unknown_total", op="stream.write") == 3
    assert of(found, TIMES, op="other") == 3
    assert of(found, "farm_repairs_total") == 12
    assert of(found, "resp_blocked") == 6
    # Whoever takes the place of a process that died has nothing open yet.
    assert of(page(OperationMetrics(memory, 1)), "resp_blocked") == 2
    assert of(found, "retries_total", why="MOVED") == of(found, "retries_total", why="other") == 3


def test_every_metric_that_is_declared_is_given_somewhere() -> None:
    modules = Path(headwater.__file__).parent.rglob("*.py")
    text = "\n".join(m.read_text("utf-8") for m in modules if m.name != "exposition.py")
    assert [name for name in FAMILIES if not re.search(rf"\b{name}\b", text)] == []


def test_no_label_grows_with_the_data() -> None:
    objects = {"store", "stream", "group", "reader", "queue", "ick", "database"}
    objects |= {"query", "query_name"}
    few = {"tier", "state", "op", "outcome", "why", "mode", "version", "code", "part"}
    few |= {"cluster", "address", "level"}
    for family in FAMILIES.values():
        assert set(family.labels) <= objects | few


def test_open_connections_tails_and_blocked_readers_are_shown_while_they_are_there() -> None:
    levels = ("http_connections", "sse_tails", "resp_connections", "resp_blocked")
    resp = ListenAddress("127.0.0.1", 0)
    with Server(tcp=True) as server:
        served = StoreServer(
            ApiSettings(server.url, Tokens(), farm=f"127.0.0.1:{server.port}"),
            ListenAddress("127.0.0.1", 0),
            HttpLimits(),
            resp=RespListening(resp, RespLimits()),
        )
        bound = resp.bind()

        async def serve(process: ServerProcess) -> None:
            await served.serve(process._replace(also=(bound,)))

        with ServerThread(serve) as thread, ExitStack() as opened:
            client = opened.enter_context(closing(ApiClient(thread.port)))

            def shown() -> list[float]:
                found = read_page(client.get("/metrics").body)
                assert of(found, "farm_instance_up") == 1
                return [of(found, level) for level in levels]

            assert shown() == [1, 0, 0, 0]
            tail = thread.connect()
            tail.sendall(b"GET /v1/streams/s/tail HTTP/1.1\r\nHost: localhost\r\n\r\n")
            blocked = RawClient(socket.create_connection(bound.getsockname()))
            blocked.send(b"TREAD s 1 1 BLOCK 0\r\n")
            until(lambda: shown() == [2, 1, 1, 1])
            tail.close()
            blocked.close()
            until(lambda: shown() == [1, 0, 0, 0])


def test_a_cap_below_what_a_server_needs_is_refused() -> None:
    async def make(url: str) -> None:
        async with sampling(url, max_series=10):
            pass

    with Server() as server, pytest.raises(InvalidInput, match="max_series"):
        asyncio.run(make(server.url))


def test_a_server_answers_with_metrics_to_whoever_may_read_all() -> None:
    tokens = Tokens([("all", Scope.READ)])
    with Server() as server, ApiServer(server.url, tokens) as api:
        assert api.client().get("/metrics").status == 401
        client = api.client("all")
        assert client.get("/v1/streams").status == 200
        answer = client.get("/metrics", Accept="text/plain;version=0.0.4;q=0.5,*/*;q=0.1")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        found = read_page(answer.body)
    assert of(found, "store_up") == 1
    assert of(found, "http_requests_total", code="200") >= 1
    assert of(found, "http_requests_total", code="401") == 1


# The history of a store is kept in the store: in fixed space, by one writer, for all who read.


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


# ── A farm reports what it does to the installed instrument; Roshi's metrics follow from that ────


OPERATIONS = {"farm.insert", "farm.delete", "farm.select", "farm.score", "farm.repair"}


def test_every_operation_is_reported_with_its_farm_how_much_and_its_outcome(
    open_: OpenFarm, three: list[Replica], told: Recorder
) -> None:
    url = three[1].url
    farm, secret = open_(url), open_(f"{url};redis://ada:secret@{DEAD}", write_quorum=2)
    farm.insert([("k", 1, "a"), ("k", 2, "b"), ("j", 1, "a")])
    farm.delete([("k", 3, "a")])
    farm.select(["k", "j", "none"])
    farm.score([("k", "a"), ("k", "x")])
    farm.repair(["k"])
    with pytest.raises(QuorumFailed):
        secret.insert([("k", 4, "c")])
    secret.settle()
    events = [event for event in told.events if event.name in OPERATIONS]
    shown = f"{url};redis://{DEAD}"
    assert [(e.name, e.object, e.outcome, e.messages, e.error) for e in events] == [
        ("farm.insert", url, "ok", 3, ""),
        ("farm.delete", url, "ok", 1, ""),
        ("farm.select", url, "ok", 2, ""),
        ("farm.score", url, "ok", 2, ""),
        ("farm.repair", url, "ok", 1, ""),
        ("farm.insert", shown, "failed", 1, "QuorumFailed"),
    ]
    assert all(event.seconds > 0 for event in events)
    assert told.counts["farm.write_applied", url] == 4


@pytest.fixture
def tally() -> Iterator[Tally]:
    with installed(tally := Tally()):
        yield tally


def test_every_metric_is_counted(open_: OpenFarm, three: list[Replica], tally: Tally) -> None:
    horizon = -5.0
    words: dict[str, Any] = {"max_size": 3, "keep": 3, "horizon": lambda: horizon}
    a, b, _ = (replica.url for replica in three)
    open_(a, max_size=3, keep=3).insert([("k", i, f"m{i}") for i in (1, 2, 3)])
    farm = open_(**words)
    farm.select(["k", "j"])
    farm.settle()
    assert tally.counts["repair_write_success"] == 6
    horizon = 3.0
    farm.insert([("k", 9, "n"), ("k", 9, "n"), ("k", 1, "o")])
    farm.insert([("k", i, f"n{i}") for i in (10, 11, 12)])
    farm.delete([("k", 12, "n12")])
    three[0].client.zadd("k+", {"over the size": 4, "below the horizon": 2})
    farm.repair(["k"])
    farm.settle()
    lone = open_(f"{a};{DEAD}", write_quorum=2, **words)
    for verb in (lone.insert, lone.delete):
        with pytest.raises(QuorumFailed):
            verb([("k", 20, "x")])
    lone.select(["k"])
    lone.repair(["k"])
    lone.insert([])
    open_(a, **words).insert([("k", 30, "y")])
    open_(f"{a};{b}", repair_strategy="NoRepairs", **words).select(["k"])
    for rate in (0, 9):
        # The one cluster that may be asked is down.
        farm = open_(DEAD, read_strategy="SendVarReadFirstLinger", read_rate=rate, **words)
        with pytest.raises(AllReplicasFailed):
            farm.select(["k"])
    rare = {"repair_write_failure", "repair_check_redundant"}
    assert {name for name in COUNTERS if not tally.counts[name]} == rare
    assert [name for name in DURATIONS if not tally.times[name][0]] == []
    found = {name: tally.counts[name] for name in ("insert_record_count", "write_rejected")}
    assert found == {"insert_record_count": 11, "write_rejected": 1}
