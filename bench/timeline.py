"""A farm of three clusters against plain sorted sets on the same servers, and over HTTP.

Of HTTP there is no peer that does the same here; beside our server, which asks three clusters, runs
one of starlette and uvicorn that answers with constants, by the same client.
"""

from __future__ import annotations

import base64
import contextlib
import json
import random
import re
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import redis

from bench.harness import Row, interleave, rate, server, socket_url
from headwater.timeline import Farm

BATCH = 1000
KEYS = 100
SHOWN = 10
CONNECTIONS = 64
Ask = Callable[[], bytes]


@dataclass
class Place:
    """Three servers, by plain clients and as a farm."""

    natives: list[redis.Redis]
    rounds: int

    @property
    def farm(self) -> str:
        return ";".join(socket_url(native) for native in self.natives)


def tuples(prefix: str, turn: int) -> list[tuple[str, float, str]]:
    """Return a batch that no round has written before."""
    return [
        (f"{prefix}{n % KEYS}", float(turn * BATCH + n), f"member-{turn}-{n}") for n in range(BATCH)
    ]


def inserting(place: Place) -> Row:
    turns = count()
    with Farm.open(place.farm, write_quorum=3) as farm:

        def ours() -> float:
            batches = [tuples("ours", next(turns)) for _ in range(5)]
            return rate(5 * BATCH, lambda: [farm.insert(batch) for batch in batches])

        def work(batches: list[list[tuple[str, float, str]]]) -> None:
            for batch in batches:
                for native in place.natives:
                    pipe = native.pipeline(transaction=False)
                    for key, score, member in batch:
                        pipe.zadd(key, {member: score})
                    pipe.execute()

        def plain() -> float:
            batches = [tuples("plain", next(turns)) for _ in range(5)]
            return rate(5 * BATCH, lambda: work(batches))

        ours()
        mine, peer = interleave(ours, plain, place.rounds)
    return row("insert in batches of 1000, ZADD in pipelines, to 3", mine, peer, 0.3, 0.5, "tuples")


def selecting(place: Place, strategy: str, replicas: int, least: float) -> Row:
    with Farm.open(place.farm, read_strategy=strategy, repair_strategy="NoRepairs") as farm:
        for turn in range(2 * SHOWN * KEYS // BATCH):
            farm.insert(tuples("read", turn))
        farm.settle()
        names = [f"read{n}" for n in range(KEYS)]

        def ours() -> float:
            return rate(10 * KEYS, lambda: [farm.select(names, limit=SHOWN) for _ in range(10)])

        def work() -> None:
            for _ in range(10):
                for native in place.natives[:replicas]:
                    pipe = native.pipeline(transaction=False)
                    for name in names:
                        pipe.zrevrange(f"{name}+", 0, SHOWN - 1, withscores=True)
                    pipe.execute()

        ours()
        mine, peer = interleave(ours, lambda: rate(10 * KEYS, work), place.rounds)
    name = f"select 10 of 100 keys, {strategy}, ZREVRANGE in pipelines"
    return row(name, mine, peer, least, 1.0, "keys")


def row(name: str, ours: float, peer: float, least: float, aim: float, unit: str) -> Row:
    return Row(
        name, "off", f"{ours:,.0f} {unit}/s", f"{peer:,.0f} {unit}/s", ours / peer, least, aim
    )


@contextlib.contextmanager
def program(words: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a web server until the end of the block."""
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 30
            while True:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{words} does not listen")
                time.sleep(0.05)
            yield process
        finally:
            process.terminate()


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port: int = place.getsockname()[1]
        return port


class Line:
    """A connection with one request under way."""

    def __init__(self, port: int, ask: Ask) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self._ask = ask
        self.send()

    def send(self) -> None:
        self._got = b""
        self._begun = time.perf_counter()
        self.socket.sendall(self._ask())

    def took(self) -> float | None:
        """Read on; returns how long the request took once its answer is there, else None."""
        self._got += self.socket.recv(65536)
        head, end, body = self._got.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        if not end or length is None or len(body) < int(length[1]):
            return None
        if not head.startswith(b"HTTP/1.1 20"):
            raise RuntimeError(f"a request failed: {self._got[:300]!r}")
        return time.perf_counter() - self._begun


def load(
    port: int, ask: Ask, seconds: float, connections: int = CONNECTIONS
) -> tuple[float, float]:
    """Keep some connections busy; returns requests a second, and the p99 in milliseconds."""
    took: list[float] = []
    with selectors.DefaultSelector() as selector:
        lines = [Line(port, ask) for _ in range(connections)]
        for line in lines:
            selector.register(line.socket, selectors.EVENT_READ, line)
        begun = time.perf_counter()
        # A machine that is too busy to answer twice in this time is given more.
        while (past := time.perf_counter() - begun) < seconds or len(took) < 2:
            for ready, _ in selector.select(1):
                if (one := ready.data.took()) is not None:
                    took.append(one)
                    ready.data.send()
    for line in lines:
        line.socket.close()
    return len(took) / past, statistics.quantiles(took, n=100)[98] * 1000


def request(method: str, content: object) -> bytes:
    body = json.dumps(content).encode()
    head = f"{method} / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def serving(place: Place, seconds: float) -> list[Row]:
    chance = random.Random(1)
    numbers = count(1)

    def element() -> dict[str, object]:
        key = b64(f"web{chance.randrange(KEYS)}")
        return {"key": key, "score": next(numbers), "member": b64(f"member-{next(numbers)}")}

    # Made before they are needed: the client has the same cores as the servers.
    asks: dict[str, list[bytes]] = {
        "insert of 1": [request("POST", [element()]) for _ in range(5000)],
        "select 10 of 1 key": [request("GET", [b64(f"web{n}")]) for n in range(KEYS)],
    }
    ours, bare = free_port(), free_port()
    headwater = str(Path(sys.executable).with_name("headwater"))
    mine = [headwater, "timeline", "serve", "--instances", place.farm]
    peer = [sys.executable, "-m", "uvicorn", "bench.bare:app", "--no-access-log"]
    rows: list[Row] = []
    with program([*mine, "--port", str(ours)], ours), program([*peer, "--port", str(bare)], bare):
        for name, made in asks.items():
            rows += web_row(name, made, ours, bare, place.rounds, seconds)
        rows.append(bulk_row(place, ours, lambda: [element() for _ in range(100)], seconds))
    return rows


def bulk_row(
    place: Place, port: int, make: Callable[[], list[dict[str, object]]], seconds: float
) -> Row:
    """Measure batches of 100 tuples over HTTP against plain pipelines of as many."""
    turn = count()
    made = [request("POST", make()) for _ in range(500)]

    def ours() -> float:
        return 100 * load(port, lambda: made[next(turn) % len(made)], seconds)[0]

    def work() -> None:
        for batch in range(50):
            for native in place.natives:
                pipe = native.pipeline(transaction=False)
                for number in range(100):
                    pipe.zadd(f"bulk{number}", {f"member-{number}": batch})
                pipe.execute()

    mine, peer = interleave(ours, lambda: rate(5000, work), place.rounds)
    return row("HTTP insert of 100, ZADD in pipelines, to 3", mine, peer, 0.3, 0.5, "tuples")


def web_row(
    name: str, made: list[bytes], ours: int, bare: int, rounds: int, seconds: float
) -> list[Row]:
    turn = count()
    figures: dict[int, list[tuple[float, float]]] = {ours: [], bare: []}
    for _ in range(rounds):
        for port in (ours, bare):
            figures[port].append(load(port, lambda: made[next(turn) % len(made)], seconds))
    mine, peer = (
        [statistics.median(values) for values in zip(*figures[port], strict=True)]
        for port in (ours, bare)
    )
    return [
        row(f"HTTP {name}, bare starlette", mine[0], peer[0], 1.5, 2.5, "requests"),
        Row(
            f"HTTP {name}, p99, bare starlette",
            "off",
            f"{mine[1]:.1f} ms",
            f"{peer[1]:.1f} ms",
            mine[1] / peer[1],
            # Ours shares the cores with three servers that it asks, and the peer asks nobody.
            1.5,
            1.0,
            higher_is_better=False,
        ),
    ]


def run(rounds: int, seconds: float) -> list[Row]:
    """Measure the library and the server on a farm of three servers."""
    with server("off") as one, server("off") as two, server("off") as three:
        place = Place([one, two, three], rounds)
        return [
            inserting(place),
            selecting(place, "SendAllReadAll", 3, 0.7),
            selecting(place, "SendOneReadOne", 1, 0.7),
            *serving(place, seconds),
        ]
