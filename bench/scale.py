"""One long stream: memory, write rate over time and seek latency as it grows to 100M messages."""

from __future__ import annotations

import random
import statistics
import time

from rich.console import Console
from rich.table import Table

import headwater
from bench.events import events
from bench.harness import machine, server, socket_url

BATCH = 1000


def run(messages: int) -> int:
    """Grow a stream and look at it at 1 %, 2 %, 5 %, 10 %, 20 %, 50 % and 100 % of its size."""
    looks = [messages * share // 100 for share in (1, 2, 5, 10, 20, 50, 100)]
    pairs = events(200_000)
    batches = [pairs[at : at + BATCH] for at in range(0, len(pairs), BATCH)]
    table = Table(title=f"one stream, {messages:,} messages, fsync off", caption=machine())
    headings = (
        "messages",
        "rate/s since last",
        "bytes/message",
        "server MB",
        "read 10: p50 us",
        "p99 us",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    rates: list[float] = []
    with server("off") as native, headwater.connect(socket_url(native)) as hw:
        stream = hw.stream("scale")
        idle = int(native.info("memory")["used_memory"])
        written, began, marked = 0, time.perf_counter(), 0
        while written < messages:
            stream.write_many(batches[written // BATCH % len(batches)])
            written += BATCH
            if written >= looks[0]:
                looks.pop(0)
                rates.append((written - marked) / (time.perf_counter() - began))
                used = int(native.info("memory")["used_memory"]) - idle
                p50, p99 = seeks(stream, written)
                row = (
                    f"{written:,}",
                    f"{rates[-1]:,.0f}",
                    f"{used / written:.1f}",
                    f"{used / 1e6:,.0f}",
                )
                table.add_row(*row, f"{p50:.0f}", f"{p99:.0f}")
                began, marked = time.perf_counter(), written
        Console(width=120).print(table)
    return 0 if min(rates) > max(rates) / 3 else 1


def seeks(stream: headwater.Stream, size: int) -> tuple[float, float]:
    """Read 10 at 500 random offsets; returns p50 and p99 in microseconds."""
    rng = random.Random(size)
    took = []
    for _ in range(500):
        offset = rng.randrange(1, size - 10)
        began = time.perf_counter()
        if len(stream.read(offset, 10)) != 10:
            raise AssertionError("a read came back short")
        took.append((time.perf_counter() - began) * 1e6)
    return statistics.median(took), statistics.quantiles(took, n=100)[98]
