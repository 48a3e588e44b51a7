"""The log against native Redis Streams, through redis-py with hiredis, on the same server."""

from __future__ import annotations

import multiprocessing
import random
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import redis

import headwater
from bench.checksums import checked_write
from bench.events import events
from bench.harness import Pair, Row, interleave, rate, server, socket_url
from bench.order import limited_work, ordered_work

BATCH = 1000
MESSAGES = 20_000


class Logs(Pair):
    """The pair of a stream of ours and a native stream."""

    def __init__(self, peer: redis.Redis, fsync: str, rounds: int, messages: int) -> None:
        super().__init__(peer, fsync, rounds)
        self.messages = messages
        self.pairs = events(messages)

    def batches(self) -> list[list[tuple[str, bytes]]]:
        return [self.pairs[at : at + BATCH] for at in range(0, self.messages, BATCH)]

    def fill_native(self, key: str) -> None:
        for batch in self.batches():
            pipe = self.peer.pipeline(transaction=False)
            for tag, value in batch:
                pipe.xadd(key, {"tag": tag, "value": value})
            pipe.execute()

    def fill_ours(self, stream: headwater.Stream) -> None:
        for batch in self.batches():
            stream.write_many(batch)


def write_batches(pair: Logs) -> Row:
    def ours() -> float:
        stream = pair.ours.stream(pair.name())
        figure = rate(pair.messages, lambda: pair.fill_ours(stream))
        stream.delete()
        return figure

    def native() -> float:
        key = pair.name()
        figure = rate(pair.messages, lambda: pair.fill_native(key))
        pair.peer.delete(key)
        return figure

    a, b = interleave(ours, native, pair.rounds)
    name = "write_many of 1000 / pipelined XADD, messages/s"
    return Row.of(name, pair.fsync, a, b, 6, 10)


def group_read_ack(pair: Logs) -> Row:
    stream, key = pair.ours.stream(pair.name()), pair.name()
    pair.fill_ours(stream)
    pair.fill_native(key)

    def ours() -> float:
        group = stream.group(pair.name())

        def work() -> None:
            got = 0
            while got < pair.messages:
                messages = group.read(BATCH, ack_ms=60_000)
                got += len(messages)
                group.ack((messages[0].offset, messages[-1].offset))

        figure = rate(pair.messages, work)
        group.remove()
        return figure

    def native() -> float:
        group = pair.name()
        pair.peer.xgroup_create(key, group, id="0")

        def work() -> None:
            got = 0
            while got < pair.messages:
                reply: Any = pair.peer.xreadgroup(group, "m", {key: ">"}, count=BATCH)
                ((_, entries),) = reply
                got += len(entries)
                pair.peer.xack(key, group, *(entry_id for entry_id, _ in entries))

        figure = rate(pair.messages, work)
        pair.peer.xgroup_destroy(key, group)
        return figure

    a, b = interleave(ours, native, pair.rounds)
    stream.delete()
    pair.peer.delete(key)
    name = "group read + ack of 1000 / XREADGROUP + XACK, messages/s"
    return Row.of(name, pair.fsync, a, b, 5, 10)


def read_objects(pair: Logs) -> Row:
    stream, key = pair.ours.stream(pair.name()), pair.name()
    pair.fill_ours(stream)
    pair.fill_native(key)

    def ours() -> float:
        def work() -> None:
            for offset in range(1, pair.messages, BATCH):
                if len(stream.read(offset, BATCH)) != BATCH:
                    raise AssertionError("a read came back short")

        return rate(pair.messages, work)

    def native() -> float:
        def work() -> None:
            at, got = "-", 0
            while got < pair.messages:
                entries: Any = pair.peer.xrange(key, at, "+", count=BATCH)
                got += len(entries)
                at = "(" + entries[-1][0].decode()

        return rate(pair.messages, work)

    a, b = interleave(ours, native, pair.rounds)
    stream.delete()
    pair.peer.delete(key)
    name = "read of 1000 to Python objects / XRANGE, messages/s"
    return Row.of(name, pair.fsync, a, b, 5, 8)


def memory(pair: Logs) -> Row:
    """Bytes per message as the server counts them, after writing in small batches and sealing."""
    pair.ours.stream("warm").write("a", b"b")
    stream, key = pair.ours.stream(pair.name()), pair.name()
    before = used_memory(pair.peer)
    for at in range(0, pair.messages, 20):
        stream.write_many(pair.pairs[at : at + 20])
    stream.seal()
    middle = used_memory(pair.peer)
    for at in range(0, pair.messages, BATCH):
        pipe = pair.peer.pipeline(transaction=False)
        for tag, value in pair.pairs[at : at + BATCH]:
            pipe.xadd(key, {"tag": tag, "value": value})
        pipe.execute()
    after = used_memory(pair.peer)
    ours, native = (middle - before) / pair.messages, (after - middle) / pair.messages
    stream.delete()
    pair.peer.delete(key)
    name = "memory per message after sealing / native stream, bytes"
    return Row(name, pair.fsync, f"{ours:.1f}", f"{native:.1f}", ours / native, 1 / 4, 1 / 6, False)


def used_memory(client: redis.Redis) -> int:
    """Read used_memory once it has come to rest: buffers of clients shrink a little later."""
    figures = [int(client.info("memory")["used_memory_dataset"])]
    while len(figures) < 3 or figures[-1] != figures[-2]:
        time.sleep(0.2)
        figures.append(int(client.info("memory")["used_memory_dataset"]))
    return figures[-1]


def single_write(pair: Logs) -> Row:
    writes = 2000 if pair.fsync == "off" else 400

    def ours() -> float:
        stream = pair.ours.stream(pair.name())
        stream.write("warm", b"up")
        some = pair.pairs[:writes]
        figure = rate(writes, lambda: [stream.write(tag, value) for tag, value in some])
        stream.delete()
        return figure

    def native() -> float:
        key = pair.name()
        pair.peer.xadd(key, {"tag": "warm", "value": b"up"})
        some = pair.pairs[:writes]
        figure = rate(
            writes, lambda: [pair.peer.xadd(key, {"tag": t, "value": v}) for t, v in some]
        )
        pair.peer.delete(key)
        return figure

    a, b = interleave(ours, native, pair.rounds)
    name = "one write at a time / single XADD, messages/s"
    return Row.of(name, pair.fsync, a, b, 0.6, 1)


def wake_latency(pair: Logs) -> Row:
    """From before the write until a blocked member, in a process of its own, has the message.

    Both members are there at once and served in turn, so that both meet the machine as it is.
    """
    stream, key = pair.ours.stream(pair.name()), pair.name()
    stream.write("warm", b"up")
    pair.peer.xgroup_create(key, "g", id="$", mkstream=True)
    tag, value = pair.pairs[0]
    writes: dict[str, Callable[[], object]] = {
        stream.name: lambda: stream.write(tag, value),
        key: lambda: pair.peer.xadd(key, {"tag": tag, "value": value}),
    }
    a, b = _hand_over(pair, writes, 100 * pair.rounds)
    name = "write to blocked member, p50 / XADD to blocked XREADGROUP, us"
    return Row.of(name, pair.fsync, a, b, 1.5, 1.1, False)


def _hand_over(
    pair: Logs, writes: dict[str, Callable[[], object]], samples: int
) -> tuple[float, float]:
    """Return the medians of many hand-overs by us and natively, in us."""
    spawn = multiprocessing.get_context("spawn")
    seen: list[multiprocessing.Queue[float]] = [spawn.Queue() for _ in writes]
    took: list[list[float]] = [[] for _ in writes]
    members = [
        spawn.Process(target=_member, args=(kind, socket_url(pair.peer), name, samples, times))
        for kind, name, times in zip(("ours", "native"), writes, seen, strict=True)
    ]
    for member in members:
        member.start()
    for turn in range(2 * samples):
        # The native member is gone after its last message, which is the last of all.
        while pair.peer.info("clients")["blocked_clients"] < min(2, 2 * samples - turn):
            time.sleep(0.0005)
        began = time.perf_counter()
        [*writes.values()][turn % 2]()
        took[turn % 2].append(seen[turn % 2].get(timeout=30) - began)
    for member in members:
        member.join()
    ours, native = (statistics.median(each) * 1e6 for each in took)
    return ours, native


def _member(
    kind: str, url: str, name: str, samples: int, seen: multiprocessing.Queue[float]
) -> None:
    take: Callable[[], object]
    if kind == "ours":
        group = headwater.connect(url).stream(name).group("g", start="last")
        group.read(1)
        take = partial(group.read, 1, block_ms=5000, ack_ms=60_000)
    else:
        native = redis.Redis(unix_socket_path=url.removeprefix("unix://"))
        take = partial(native.xreadgroup, "g", "m", {name: ">"}, count=1, block=5000)
    for _ in range(samples):
        if not take():
            raise AssertionError("a blocked read came back empty")
        seen.put(time.perf_counter())


def seek_and_evict(pair: Logs, small: int, large: int) -> list[Row]:
    """Measure a long stream: finding a place in it, then evicting half of it."""
    long, short = pair.ours.stream(pair.name()), pair.ours.stream(pair.name())
    for stream, size in ((long, large), (short, small)):
        for number, batch in zip(range(size // BATCH), cycle(pair.batches()), strict=False):
            stream.write_many(batch, producer="bench", sequence=number)
        # As a housekeeper leaves them: the newest nodes are hot, which is all of a short stream.
        stream.seal()
    rows = [seek(pair, (long, large), (short, small)), evict_half(pair, long, large)]
    long.delete()
    short.delete()
    return rows


def seek(
    pair: Logs, long: tuple[headwater.Stream, int], short: tuple[headwater.Stream, int]
) -> Row:
    """Read 10 at random offsets of a long stream, against the same in a short one."""
    rng = random.Random(5)

    def reads(stream: headwater.Stream, size: int) -> float:
        began = time.perf_counter()
        for _ in range(300):
            stream.read(rng.randrange(1, size - 10), 10)
        return (time.perf_counter() - began) / 300 * 1e6

    a, b = interleave(lambda: reads(*long), lambda: reads(*short), pair.rounds)
    name = f"seek + read 10 at random, {long[1]:,} messages / {short[1]:,}, us"
    return Row.of(name, pair.fsync, a, b, 1.3, 1.05, False)


def evict_half(pair: Logs, stream: headwater.Stream, size: int) -> Row:
    """Evict half of a long stream while another client measures the longest pause it sees."""
    nodes = stream.info().nodes
    idle = longest_pause(pair.peer, lambda: time.sleep(1))
    began = time.perf_counter()
    busy = longest_pause(pair.peer, lambda: stream.evict(size // 2))
    took = time.perf_counter() - began
    if stream.info().first != size // 2 + 1:
        raise AssertionError("not all was evicted")
    name = (
        f"evict half of {size:,}: longest pause, ms / 20 ms ({took / nodes * 2e6:.0f} us per node)"
    )
    peer = f"20.0 (idle {idle:.1f})"
    return Row(name, pair.fsync, f"{busy:.1f}", peer, busy / 20, 1, 0.5, False)


def longest_pause(client: redis.Redis, work: Callable[[], object]) -> float:
    """Ping all the while work runs, and return the longest answer time, in ms."""
    stop = threading.Event()
    pauses: list[float] = []

    def watch() -> None:
        while not stop.is_set():
            began = time.perf_counter()
            client.ping()
            pauses.append(time.perf_counter() - began)

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    stop.set()
    watcher.join()
    return max(pauses) * 1000


def run(rounds: int, long: int) -> list[Row]:
    """Measure every row, without an append-only file and with one that is synced always."""
    rows: list[Row] = []
    for fsync in ("off", "always"):
        with server(fsync) as native:
            pair = Logs(native, fsync, rounds, min(MESSAGES, long))
            measures = [write_batches, group_read_ack, read_objects, single_write, wake_latency]
            rows += [measure(pair) for measure in measures]
            if fsync == "off":
                rows += [
                    checked_write(pair),
                    memory(pair),
                    *ordered_work(pair, min(10_000, long)),
                    *limited_work(pair, min(10_000, long)),
                ]
                rows += seek_and_evict(pair, 10_000, long)
            pair.ours.close()
    return rows
