"""How we measure: ours and the peer in turn, many rounds, and the ratio of the medians.

Machines are noisy; two programs are only compared when they ran side by side in the same minute.
"""

from __future__ import annotations

import contextlib
import json
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Self

import redis
from rich.console import Console
from rich.table import Table

import headwater
from headwater.store.embedded import server_binary

Measure = Callable[[], float]


@dataclass(frozen=True)
class Row:
    """One line of the result: ours against the peer; without a least it is shown, not judged.

    ``by_processor`` is the same ratio by processor time; 0 where that was not measured.
    """

    name: str
    fsync: str
    ours: str
    peer: str
    ratio: float
    least: float
    aim: float
    higher_is_better: bool = True
    by_processor: float = 0

    @classmethod
    def of(
        cls,
        name: str,
        fsync: str,
        ours: float,
        peer: float,
        least: float,
        aim: float,
        higher_is_better: bool = True,
    ) -> Self:
        """Make the line of two figures, shown without decimals."""
        shown = f"{ours:,.0f}", f"{peer:,.0f}"
        return cls(name, fsync, *shown, ours / peer, least, aim, higher_is_better)

    @property
    def verdict(self) -> str:
        def reached(goal: float) -> bool:
            return self.ratio >= goal if self.higher_is_better else self.ratio <= goal

        if not self.least:
            return "shown"
        return "aim" if reached(self.aim) else "ok" if reached(self.least) else "BELOW"


def interleave(ours: Measure, peer: Measure, rounds: int) -> tuple[float, float]:
    """Run both in turn, swapping who begins, and return the median of each."""
    figures: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        order = (0, 1) if turn % 2 == 0 else (1, 0)
        for which in order:
            figures[which].append((ours, peer)[which]())
    return statistics.median(figures[0]), statistics.median(figures[1])


def rate(count: int, work: Callable[[], object]) -> float:
    """Run work and return how many per second."""
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


@contextmanager
def server(fsync: str) -> Iterator[redis.Redis]:
    """Run a private valkey-server on a socket: fsync is 'off' (no AOF) or 'always'."""
    with tempfile.TemporaryDirectory(prefix="hw-bench-") as folder:
        socket = str(Path(folder) / "valkey.sock")
        aof = ["--appendonly", "no"]
        if fsync == "always":
            aof = ["--appendonly", "yes", "--appendfsync", "always"]
        words = [server_binary(), "--port", "0", "--unixsocket", socket, "--dir", folder]
        # A unix socket whose backlog is full refuses connections; a thousand come at once.
        words += [
            "--tcp-backlog",
            "4096",
            "--save",
            "",
            "--logfile",
            str(Path(folder) / "log"),
            *aof,
        ]
        process = subprocess.Popen(words)
        client = redis.Redis(unix_socket_path=socket, socket_timeout=600)
        try:
            deadline = time.monotonic() + 10
            while True:
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)
            yield client
        finally:
            # It ends by itself first: its child that rewrites a file would outlive a kill.
            with contextlib.suppress(redis.RedisError):
                client.shutdown(nosave=True)
            client.close()
            process.kill()
            process.wait()


def socket_url(client: redis.Redis) -> str:
    """Return the URL by which our client reaches the server that the peer's client uses."""
    return f"unix://{client.connection_pool.connection_kwargs['path']}"


class Pair:
    """Ours and the peer's client on one server, each with names of its own."""

    def __init__(self, peer: redis.Redis, fsync: str, rounds: int) -> None:
        self.peer = peer
        self.fsync = fsync
        self.rounds = rounds
        self.ours = headwater.connect(socket_url(peer))
        self._names = count()

    def name(self) -> str:
        """Return a name that nothing on the server has yet."""
        return f"b{next(self._names)}"


def machine() -> str:
    """Return where this was measured."""
    return f"{platform.machine()}, Python {platform.python_version()}, redis-py {redis.__version__}"


def show(title: str, rows: list[Row]) -> None:
    """Print a table of rows for people."""
    Console(width=140).print(table_of(title, rows))


def show_json(rows: list[Row]) -> None:
    """Print rows for programs."""
    found = [{**asdict(row), "verdict": row.verdict} for row in rows]
    print(json.dumps({"machine": machine(), "rows": found}, indent=2))


def table_of(title: str, rows: list[Row]) -> Table:
    """Lay rows out for people."""
    table = Table(title=title, caption=machine())
    processor = any(row.by_processor for row in rows)
    figures = ("ratio", "by cpu") if processor else ("ratio",)
    for column in ("row", "fsync", "headwater", "peer", *figures, "least", "aim", "verdict"):
        table.add_column(column, justify="left" if column in ("row", "verdict") else "right")
    for row in rows:
        sign = ">=" if row.higher_is_better else "<="
        table.add_row(
            row.name,
            row.fsync,
            row.ours,
            row.peer,
            _times(row.ratio),
            *([_times(row.by_processor) if row.by_processor else ""] if processor else []),
            f"{sign} {row.least:.3g}x" if row.least else "",
            f"{row.aim:.3g}x" if row.least else "",
            row.verdict,
        )
    return table


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio >= 0.1 else f"{ratio:.3f}x"
