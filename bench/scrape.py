"""Scrapes of a store with many streams and groups, and what other calls notice of them."""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import sys
import threading
import time
import urllib.request
from pathlib import Path

import uvloop

import headwater
from bench.api import VALUE, answered, post
from bench.harness import Row, server, socket_url
from bench.timeline import free_port, program

SCRAPE_S = 1.0
SCRAPED_EVERY_S = 5.0
_AT_ONCE = 64


async def fill(url: str, objects: int) -> None:
    """Make so many streams, each with a group that has taken a message."""
    async with headwater.aio.connect(url) as hw:

        async def make(number: int) -> None:
            stream = hw.stream(f"stream-{number:06d}")
            await stream.write("tag", VALUE)
            await stream.group("group").read(1, ack_ms=3_600_000)

        for first in range(0, objects, _AT_ONCE):
            numbers = range(first, min(objects, first + _AT_ONCE))
            await asyncio.gather(*(make(number) for number in numbers))


def scrape(port: int) -> float:
    """Return the seconds until a whole page is here."""
    began = time.perf_counter()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as page:
        text = page.read()
    if b"headwater_series_complete 1" not in text:
        raise RuntimeError("the page is not complete")
    return time.perf_counter() - began


def call_ms(port: int, seconds: float) -> float:
    """Return the mean time of single writes over one connection, in milliseconds."""
    body = json.dumps({"tag": "ride-1", "value": VALUE}).encode()
    request = post("/v1/streams/other/messages", body, "application/json")
    calls, began = 0, time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as line:
        while time.perf_counter() < began + seconds:
            answered(line, request)
            calls += 1
    return (time.perf_counter() - began) / calls * 1000


def scraped_call_ms(port: int, seconds: float, scrapes: list[float]) -> float:
    """Do as call_ms does, while another thread scrapes every five seconds."""
    over = threading.Event()

    def go_on() -> None:
        while not over.is_set():
            scrapes.append(scrape(port))
            over.wait(SCRAPED_EVERY_S)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        return call_ms(port, seconds)
    finally:
        over.set()
        thread.join()


def run(rounds: int, seconds: float, objects: int) -> list[Row]:
    """Measure a server of one process: before anybody scrapes it, and while somebody does."""
    firsts: list[float] = []
    scrapes: list[float] = []
    quiet: list[float] = []
    busy: list[float] = []
    with server("off") as native:
        native.config_set("maxclients", 2000)
        url = socket_url(native)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(fill(url, objects))
        for _ in range(rounds):
            port = free_port()
            words = [str(Path(sys.executable).with_name("headwater")), "serve", "--http"]
            with program([*words, f"127.0.0.1:{port}", "--store", url], port):
                quiet.append(call_ms(port, seconds))
                firsts.append(scrape(port))
                busy.append(scraped_call_ms(port, seconds, scrapes))
    first, newest = statistics.median(firsts), statistics.median(scrapes)
    before, while_scraped = statistics.median(quiet), statistics.median(busy)
    title = f"scrape of {objects:,} streams and groups"
    return [
        Row(title, "off", f"{newest:.2f} s", f"{SCRAPE_S:.0f} s", newest / SCRAPE_S, 1.0, 0.5,
            higher_is_better=False),
        Row(f"first {title}", "off", f"{first:.2f} s", f"{SCRAPE_S:.0f} s", first / SCRAPE_S,
            0.0, 0.0, higher_is_better=False),
        Row(f"a write during a {title}, without", "off", f"{while_scraped:.2f} ms",
            f"{before:.2f} ms", while_scraped / before, 1.2, 1.1, higher_is_better=False),
    ]  # fmt: skip
