"""The RESP door against the same functions called by FCALL, and against native blocked readers.

Both are asked by one program over sockets, which counts replies and reads no more of them.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import redis
from hiredis import pack_command

import headwater
from bench.harness import Row, interleave, server, socket_url
from headwater.log import writing
from headwater.log.handles import StreamHandle
from headwater.store.call import Call, Operation
from headwater.store.library import encode_for_server

CONNECTIONS = 50
PIPELINE = 100
READERS = 4
VALUE = (
    b'{"ride": 123456, "driver": 789, "at": "2030-01-01T00:00:00Z", "price": 12.5, "x": "yyyyy"}'
)
# What a blocked reader may cost, and how many of them there are.
READER_BYTES = 16 * 1024
_streams = (f"resp-{number}" for number in count())


class Line:
    """A connection with some commands under way, whose replies have so many lines."""

    def __init__(self, connected: socket.socket, commands: bytes, lines: int) -> None:
        self.socket = connected
        self._commands = commands
        self._lines = lines
        self._left = 0

    def send(self) -> None:
        self._left = self._lines
        self.socket.sendall(self._commands)

    def answered(self) -> bool:
        """Read on; returns whether all replies are there."""
        got = self.socket.recv(1 << 18)
        if got.startswith(b"-"):
            raise RuntimeError(f"a command failed: {got[:300]!r}")
        self._left -= got.count(b"\r\n")
        return self._left <= 0


def load(lines: list[Line], seconds: float) -> float:
    """Keep connections busy; returns how often a second one of them was answered.

    It takes longer than that where a busy machine has answered none of them by then.
    """
    done = 0
    with selectors.DefaultSelector() as selector:
        for line in lines:
            selector.register(line.socket, selectors.EVENT_READ, line)
            line.send()
        began = time.perf_counter()
        while not done or time.perf_counter() < began + seconds:
            for ready, _ in selector.select(1):
                if ready.data.answered():
                    done += 1
                    ready.data.send()
        took = time.perf_counter() - began
    for line in lines:
        while not line.answered():
            pass
    return done / took


@contextlib.contextmanager
def door(url: str) -> Iterator[tuple[int, int]]:
    """Run a door until the end of the block; yields its port and its process."""
    words = [sys.executable, "-c", "from headwater.cli.main import app; app()", "serve"]
    words += ["--store", url, "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline().rsplit(":", 1)[1]), process.pid
        finally:
            process.terminate()


def connect_door(port: int) -> socket.socket:
    connected = socket.create_connection(("127.0.0.1", port))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def connect_store(url: str) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(url.removeprefix("unix://"))
    return connected


def packed(*words: Any) -> bytes:
    found: bytes = pack_command(words)
    return found


def by_fcall(operation: Operation[Any]) -> bytes:
    """Return the first call of an operation, as the library sends it."""
    call = operation.send(None)
    assert isinstance(call, Call)
    return packed(*encode_for_server(call))


def reply_lines(url: str, commands: bytes) -> int:
    """Return how many lines the reply to a command has."""
    with connect_store(url) as one:
        one.sendall(commands + packed("PING"))
        got = b""
        while not got.endswith(b"+PONG\r\n"):
            got += one.recv(1 << 20)
        return got.count(b"\r\n") - 1


def writing_row(
    name: str, pipeline: int, connections: int, url: str, port: int, rounds: int, seconds: float,
    least: float, aim: float,
) -> Row:  # fmt: skip
    """Measure single writes of many connections, one or many at a time."""
    stream = next(_streams)
    handle = StreamHandle(f"{stream}-fcall", set())
    direct = by_fcall(writing.write(handle, "tag", VALUE, None))
    lines = reply_lines(url, direct)
    ours = [
        Line(connect_door(port), packed("TWRITE", stream, "tag", VALUE) * pipeline, pipeline)
        for _ in range(connections)
    ]
    peer = [
        Line(connect_store(url), direct * pipeline, lines * pipeline) for _ in range(connections)
    ]
    mine, theirs = interleave(lambda: load(ours, seconds), lambda: load(peer, seconds), rounds)
    for line in (*ours, *peer):
        line.socket.close()
    return Row.of(name, "off", mine * pipeline, theirs * pipeline, least, aim)


def reading_row(url: str, port: int, rounds: int, seconds: float) -> Row:
    """Measure reads of 1000 messages; the peer calls the function and unpacks what it returns."""
    name = next(_streams)
    ask = packed("TREAD", name, 1, 1000)
    ours = [Line(connect_door(port), ask, 1 + 6 * 1000) for _ in range(READERS)]
    with headwater.connect(url) as hw:
        hw.stream(name).write_many([(f"tag-{n % 7}", VALUE + b"%d" % n) for n in range(1000)])

        def peer() -> float:
            done, began = 0, time.perf_counter()
            while time.perf_counter() < began + seconds:
                assert len(hw.stream(name).read(1, 1000)) == 1000
                done += 1
            return done / (time.perf_counter() - began)

        mine, theirs = interleave(lambda: load(ours, seconds), peer, rounds)
    for line in ours:
        line.socket.close()
    return Row.of("TREAD of 1000 at 4 connections, library, reads/s", "off", mine, theirs, 0.5, 0.8)


def resident_bytes(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def woken_ms(sockets: list[socket.socket], write: Callable[[], object]) -> float:
    """Wake blocked readers by one write; returns the p99 of how long that took, in milliseconds."""
    took: list[float] = []
    with selectors.DefaultSelector() as selector:
        for one in sockets:
            selector.register(one, selectors.EVENT_READ)
        began = time.perf_counter()
        write()
        while len(took) < len(sockets):
            for ready, _ in selector.select(30):
                ready.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                took.append((time.perf_counter() - began) * 1000)
                selector.unregister(ready.fileobj)
    return statistics.quantiles(took, n=100)[98]


def blocked_rows(
    client: redis.Redis, url: str, port: int, process: int, readers: int, rounds: int
) -> list[Row]:
    """Measure what blocked readers cost, and how soon they are woken."""
    name = next(_streams)
    empty = resident_bytes(process)
    ours = [connect_door(port) for _ in range(readers)]
    peer = [connect_store(url) for _ in range(readers)]
    offsets = count(1)
    with headwater.connect(url) as hw, connect_door(port) as asks:

        def wait_until_blocked() -> None:
            found = b""
            while f"blocked_clients:{readers}\r".encode() not in found:
                asks.sendall(packed("INFO", "clients"))
                found = asks.recv(1 << 16)

        each = 0.0

        def by_door() -> float:
            nonlocal each
            ask = packed("TREAD", name, next(offsets), 1, "BLOCK", 0)
            for one in ours:
                one.sendall(ask)
            wait_until_blocked()
            each = each or (resident_bytes(process) - empty) / readers
            return woken_ms(ours, lambda: hw.stream(name).write("tag", VALUE))

        def natively() -> float:
            ask = packed("XREAD", "BLOCK", 0, "STREAMS", "native", "$")
            for one in peer:
                one.sendall(ask)
            while int(client.info("clients")["blocked_clients"]) < readers:
                pass
            return woken_ms(peer, lambda: client.xadd("native", {"tag": VALUE}))

        mine, theirs = interleave(by_door, natively, rounds)
    for one in (*ours, *peer):
        one.close()
    return [
        Row(
            f"{readers} blocked readers, bytes each, 16 KiB", "off", f"{each:,.0f}",
            f"{READER_BYTES:,}", each / READER_BYTES, 1.0, 0.5, higher_is_better=False,
        ),
        Row(
            f"{readers} blocked readers woken, p99, XREAD", "off", f"{mine:.1f} ms",
            f"{theirs:.1f} ms", mine / theirs, 2.0, 1.0, higher_is_better=False,
        ),
    ]  # fmt: skip


def run(rounds: int, seconds: float, readers: int) -> list[Row]:
    """Measure the door of one process on one server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with server("off") as client, door(url := socket_url(client)) as (port, process):
        single, many = "TWRITE at 50 connections, FCALL", "TWRITE in pipelines of 100, FCALL"
        return [
            writing_row(single, 1, CONNECTIONS, url, port, rounds, seconds, 0.5, 0.8),
            writing_row(many, PIPELINE, 1, url, port, rounds, seconds, 0.7, 1.0),
            reading_row(url, port, rounds, seconds),
            *blocked_rows(client, url, port, process, readers, rounds),
        ]
