"""The HTTP API: batches against the library, single writes against a bare handler, tails.

The bare handler is one of starlette and uvicorn that does one XADD for each request.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import resource
import socket
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa
import redis
import uvloop

import headwater
from bench.harness import Row, interleave, rate, server, socket_url
from bench.timeline import free_port, load, program

BATCH = 1000
WRITERS = 4
KIB_A_TAIL = 16
DRAIN_S = 2.0
VALUE = json.dumps({"ride": 123456, "km": 3.5, "by": "somebody", "state": "begun"})


def post(path: str, body: bytes, media: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def arrow_body(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def answered(line: socket.socket, request: bytes) -> None:
    """Send a request and read its answer, which is short."""
    line.sendall(request)
    got = line.recv(65536)
    while b"\r\n\r\n" not in got or not got.endswith(b"}"):
        got += line.recv(65536)
    if not got.startswith(b"HTTP/1.1 20"):
        raise RuntimeError(f"a request failed: {got[:300]!r}")


def repeat(times: int, work: Callable[[], object]) -> None:
    for _ in range(times):
        work()


def calls_a_second(work: Callable[[], object], seconds: float) -> float:
    done, begun = 0, time.perf_counter()
    while (past := time.perf_counter() - begun) < seconds:
        work()
        done += 1
    return done / past


def batches(hw: headwater.Headwater, port: int, rounds: int, seconds: float) -> list[Row]:
    """Measure batches of 1000 events, as JSON and as Arrow, against the library."""
    tags = [f"ride-{number % 100}" for number in range(BATCH)]
    events = [{"tag": tag, "value": VALUE} for tag in tags]
    batch = pa.record_batch({"tag": tags, "value": pa.array([VALUE.encode()] * BATCH)})
    path = "/v1/streams/web/messages"
    as_json = post(path, json.dumps(events).encode(), "application/json")
    as_arrow = post(path, arrow_body(batch), "application/vnd.apache.arrow.stream")
    pairs = [(tag, VALUE.encode()) for tag in tags]
    stream, long = hw.stream("library"), hw.stream("library-long")
    times = 30
    with socket.create_connection(("127.0.0.1", port)) as line:

        def over_http(request: bytes) -> float:
            return rate(times * BATCH, lambda: repeat(times, lambda: answered(line, request)))

        def by_library(write: Callable[[], object]) -> float:
            return rate(times * BATCH, lambda: repeat(times, write))

        json_ = interleave(
            lambda: over_http(as_json), lambda: by_library(lambda: stream.write_many(pairs)), rounds
        )
        arrow = interleave(
            lambda: over_http(as_arrow), lambda: by_library(lambda: stream.append(batch)), rounds
        )
    several = interleave(
        lambda: BATCH * load(port, lambda: as_arrow, seconds, WRITERS)[0],
        lambda: BATCH * calls_a_second(lambda: long.append(batch), seconds),
        rounds,
    )
    # One client waits for each answer before it sends the next batch, as the library does. Several
    # clients keep the server busy, and show how much it takes in.
    at_once = f"HTTP Arrow batches of 1000, {WRITERS} connections, events/s, append"
    return [
        Row.of("HTTP JSON batches of 1000, events/s, write_many", "off", *json_, 0.3, 0.5),
        Row.of(at_once, "off", *several, 0.7, 0.9),
        Row.of("HTTP Arrow batches of 1000, one connection, events/s, append", "off", *arrow, 0, 0),
    ]


def scan(hw: headwater.Headwater, port: int, rounds: int) -> Row:
    """Measure a read of many messages as Arrow against a scan by the library."""
    stream = hw.stream("library")
    total = stream.info().length
    path = f"/v1/streams/library/messages?count={total}"

    def over_http() -> None:
        line = http.client.HTTPConnection("127.0.0.1", port)
        line.request("GET", path, headers={"Accept": "application/vnd.apache.arrow.stream"})
        with contextlib.closing(line), line.getresponse() as reply:
            check(batch.num_rows for batch in pa.ipc.open_stream(reply))

    def check(rows: Iterable[int]) -> None:
        if sum(rows) != total:
            raise RuntimeError("a scan has missed something")

    figures = interleave(
        lambda: rate(total, over_http),
        lambda: rate(total, lambda: check(batch.num_rows for batch in stream.scan())),
        rounds,
    )
    return Row.of("HTTP Arrow read of a stream, messages/s, scan", "off", *figures, 0, 0)


def singles(native: redis.Redis, port: int, rounds: int, seconds: float) -> Row:
    """Measure single writes at 64 connections against a bare handler that does one XADD."""
    bare = free_port()
    os.environ["BENCH_SOCKET"] = socket_url(native)
    words = [sys.executable, "-m", "uvicorn", "bench.bare_xadd:app", "--no-access-log"]
    body = json.dumps({"tag": "ride-1", "value": VALUE}).encode()
    mine = post("/v1/streams/single/messages", body, "application/json")
    theirs = post("/", body, "application/json")
    with program([*words, "--port", str(bare)], bare):
        ours, peer = interleave(
            lambda: load(port, lambda: mine, seconds)[0],
            lambda: load(bare, lambda: theirs, seconds)[0],
            rounds,
        )
    return Row.of("HTTP single writes, 64 connections, bare XADD", "off", ours, peer, 1.5, 2.0)


async def tail_of(port: int, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    await reader.readuntil(b"retry: 1000\n\n")
    return reader, writer


async def blocked_reader(path: str, at: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"XREAD BLOCK 600000 STREAMS native %b\r\n" % at)
    return reader, writer


async def woken(
    readers: list[asyncio.StreamReader], sign: bytes, write: Callable[[], Awaitable[object]]
) -> float:
    """Write one message; returns the p99 of the times until each reader has it, in ms."""
    took: list[float] = []

    async def one(reader: asyncio.StreamReader) -> None:
        await reader.readuntil(sign)
        took.append(time.perf_counter() - begun)

    tasks = [asyncio.create_task(one(reader)) for reader in readers]
    await asyncio.sleep(0)
    begun = time.perf_counter()
    await write()
    await asyncio.gather(*tasks)
    return statistics.quantiles(took, n=100)[98] * 1000


async def waking(native: redis.Redis, port: int, pid: int, tails: int, rounds: int) -> list[Row]:
    """Measure idle tails: what each costs, how soon all are woken, how soon all are ended."""
    hw = await headwater.aio.connect(socket_url(native))
    stream = hw.stream("tailed")
    await stream.write("t", VALUE)
    path = socket_url(native).removeprefix("unix://")
    warm = [await tail_of(port, "/v1/streams/tailed/tail") for _ in range(20)]
    before = resident_kib(pid)
    opened = [await tail_of(port, "/v1/streams/tailed/tail") for _ in range(tails)]
    each = (resident_kib(pid) - before) / tails
    readers = [reader for reader, _ in opened]
    blocked = [await blocked_reader(path, b"$") for _ in range(tails)]
    plain = redis.asyncio.Redis(unix_socket_path=path)
    numbers = count(1)
    ours, peers = [], []
    for _ in range(rounds):
        await asyncio.sleep(0.2)
        ours.append(await woken(readers, b"}\n\n", lambda: stream.write("t", VALUE)))
        sign = b"value%d\r\n" % next(numbers)
        await asyncio.sleep(0.2)
        peers.append(
            await woken(
                [reader for reader, _ in blocked],
                sign,
                partial(plain.xadd, "native", {"v": sign.strip()}),
            )
        )
        for _, writer in blocked:
            writer.write(b"XREAD BLOCK 600000 STREAMS native $\r\n")
    began = time.perf_counter()
    os.kill(pid, 15)
    await asyncio.gather(*(reader.read() for reader in readers))
    drained = time.perf_counter() - began
    for _, writer in (*warm, *opened, *blocked):
        writer.close()
    await plain.aclose()
    await hw.close()
    mine, theirs = statistics.median(ours), statistics.median(peers)
    return [
        Row(f"{tails} idle tails, KiB each, {KIB_A_TAIL} KiB", "off", f"{each:.1f} KiB",
            f"{KIB_A_TAIL} KiB", each / KIB_A_TAIL, 1.0, 0.7, higher_is_better=False),
        Row(f"{tails} tails woken, p99, blocked XREAD", "off", f"{mine:.1f} ms",
            f"{theirs:.1f} ms", mine / theirs, 2.0, 1.2, higher_is_better=False),
        Row(f"{tails} tails drained, {DRAIN_S:.0f} s", "off", f"{drained:.2f} s",
            f"{DRAIN_S:.0f} s", drained / DRAIN_S, 1.0, 0.3, higher_is_better=False),
    ]  # fmt: skip


def resident_kib(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0])


def run(rounds: int, seconds: float, tails: int) -> list[Row]:
    """Measure the server on one store."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8 * tails + 200)), hard))
    with server("off") as native, headwater.connect(socket_url(native)) as hw:
        native.config_set("maxclients", 4 * tails + 1000)
        port = free_port()
        words = [str(Path(sys.executable).with_name("headwater")), "serve", "--http"]
        words += [f"127.0.0.1:{port}", "--store", socket_url(native)]
        words += ["--max-connections", str(4 * tails + 200)]
        with program(words, port) as process:
            rows = [*batches(hw, port, rounds, seconds), scan(hw, port, rounds)]
            rows.append(singles(native, port, rounds, seconds))
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                rows += runner.run(waking(native, port, process.pid, tails, rounds))
        return rows
