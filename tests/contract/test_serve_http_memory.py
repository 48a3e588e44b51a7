"""Whatever clients do, a server process holds little more memory than its limits allow.

Measured on the server as users run it: the peak of its resident memory, less what it had before.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from tests.support.commands import running
from tests.support.farms import DEAD
from tests.support.http import GET, POST

MB = 1_000_000
CLIENTS = 60
BODY = 15 << 20
TOKEN = b"Authorization: Bearer all\r\n"
HEALTH = GET.replace(b"/", b"/health", 1)
METRICS = GET.replace(b"/", b"/metrics", 1)


@dataclass
class ServerProgram:
    pid: int
    port: int

    def peak(self) -> int:
        """Return the most memory that was ever resident, in bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text("ascii")
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found
        return int(found[1]) * 1024

    def new_pages(self) -> int:
        """Return how many pages the kernel has given to the process so far."""
        facts = Path(f"/proc/{self.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return int(facts[7])

    def ask(self, text: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as raw:
            raw.sendall(text)
            return raw.makefile("rb").read()

    def check_serving(self) -> None:
        """Check that a client with a token is served."""
        answer = self.ask(METRICS + TOKEN + b"Connection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK")

    def send(self, text: bytes, *, reading: bool) -> None:
        """Send the same on many connections side by side, as far as the server takes it.

        Ends when the server has closed them all, or takes and answers nothing more for a second.
        Clients that are not ``reading`` only send.
        """
        lines = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(CLIENTS)]
        left = dict.fromkeys(lines, memoryview(text))
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as all_lines:
            for line in lines:
                all_lines.enter_context(line)
                line.setblocking(False)
                selector.register(line, selectors.EVENT_WRITE | selectors.EVENT_READ, line)
            end = time.monotonic() + 40
            while selector.get_map() and time.monotonic() < end:
                ready = selector.select(1)
                if not ready:
                    break
                for key, events in ready:
                    line = cast("socket.socket", key.data)
                    wanted = selectors.EVENT_WRITE if left[line] else 0
                    try:
                        if events & selectors.EVENT_WRITE and left[line]:
                            left[line] = left[line][line.send(left[line]) :]
                        if events & selectors.EVENT_READ and reading and not line.recv(65536):
                            raise ConnectionResetError
                    except (ConnectionResetError, BrokenPipeError):
                        selector.unregister(line)
                        continue
                    if reading:
                        wanted |= selectors.EVENT_READ
                    if wanted:
                        selector.modify(line, wanted, line)
                    else:
                        selector.unregister(line)
            # The server looks at all its sockets before it answers these.
            for _ in range(3):
                self.check_serving()


@contextlib.contextmanager
def serving(*words: str) -> Iterator[ServerProgram]:
    given = ["timeline", "serve", "--instances", DEAD, "--port", "0", *words]
    with running(None, *given) as program:
        assert program.stdout is not None
        port = int(program.stdout.readline().rpartition(":")[2])
        server = ServerProgram(program.pid, port)
        # What a first request makes the process import is no matter of these clients.
        assert server.ask(HEALTH + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 503")
        server.check_serving()
        yield server


ANONYMOUS = {
    "large bodies": POST + b"Content-Length: %d\r\n\r\n" % BODY + b"x" * BODY,
    "large bodies in chunks": POST
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + (b"4000\r\n" + b"x" * 0x4000 + b"\r\n") * (BODY // 0x4000),
    "bodies where no token is needed": HEALTH + b"Content-Length: %d\r\n\r\n" % BODY + b"x" * BODY,
    "large heads": GET + b"A: " + b"x" * 65_000,
    "endless heads": GET + b"A: " + b"x" * BODY,
    "endless targets": b"GET /" + b"x" * BODY,
    "many headers": GET + (b"A: " + b"x" * 500 + b"\r\n") * 90,
    "pipelines of what needs no token": (HEALTH + b"\r\n") * 100,
    "pipelines of what is refused": (METRICS + b"\r\n") * 3000,
}


@pytest.mark.parametrize("reading", [True, False])
def test_clients_without_a_token_cost_less_than_20_megabytes(reading: bool) -> None:
    with serving("--token", "all") as server:
        before = server.peak()
        for case, text in ANONYMOUS.items():
            server.send(text, reading=reading)
            assert server.peak() - before < 20 * MB, case


LIMITS = ("--max-buffered", "16MiB", "--max-body", "8MiB")
KNOWN = {
    "bodies without an end": POST + TOKEN + b"Content-Length: 8000000\r\n\r\n" + b"x" * 7_999_999,
    "tiny chunks": POST + TOKEN + b"Transfer-Encoding: chunked\r\n\r\n" + b"2\r\nxx\r\n" * 300_000,
    "small chunks": POST
    + TOKEN
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + (b"20\r\n" + b"x" * 32 + b"\r\n") * 60_000,
    "pipelines": (METRICS + TOKEN + b"\r\n") * 60,
}


@pytest.mark.parametrize("reading", [True, False])
def test_clients_with_a_token_cost_what_may_be_buffered(reading: bool) -> None:
    with serving("--token", "all", *LIMITS) as server:
        before = server.peak()
        for case, text in KNOWN.items():
            server.send(text, reading=reading)
            # What grows piece by piece is moved as it grows, and then there twice.
            assert server.peak() - before < 2 * (16 << 20) + 12 * MB, case


def test_large_bodies_reuse_the_memory_of_those_before_them() -> None:
    body = b"x" * MB
    text = POST + TOKEN + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % MB + body
    with serving("--token", "all", *LIMITS) as server:
        for _ in range(10):
            assert server.ask(text).startswith(b"HTTP/1.1 4")
        before = server.new_pages()
        for _ in range(20):
            server.ask(text)
        # One body has 245 pages.
        assert server.new_pages() - before < 20 * 100


SEED = int(os.environ.get("HEADWATER_SEED") or secrets.randbits(32))
ABUSES = 1500 * int(os.environ.get("HEADWATER_LONG") or 1)


def misbehave(port: int, chance: random.Random) -> None:
    """Open connections and abuse them, each in a way drawn by chance."""
    lines: list[socket.socket] = []
    texts = [*ANONYMOUS.values(), *KNOWN.values()]
    for _ in range(ABUSES):
        with contextlib.suppress(OSError):
            if len(lines) < 40:
                raw = socket.create_connection(("127.0.0.1", port), timeout=5)
                raw.setblocking(False)
                lines.append(raw)
            raw = chance.choice(lines)
            what = chance.randrange(5)
            if what == 0:
                lines.remove(raw)
                raw.close()
            elif what == 1:
                raw.recv(100)
            elif what == 2:
                raw.send(chance.randbytes(chance.randrange(1, 50)))
            else:
                text = chance.choice(texts)
                begin = chance.choice([0, 0, chance.randrange(len(text))])
                raw.send(memoryview(text)[begin : begin + chance.choice([10, 1000, 1 << 20])])
    for raw in lines:
        raw.close()


def test_a_storm_of_abuse_costs_bounded_memory_and_who_behaves_is_served() -> None:
    print(f"HEADWATER_SEED={SEED}")
    with serving("--token", "all", *LIMITS, "--max-connections", "200") as server:
        before = server.peak()
        storm = [
            threading.Thread(target=misbehave, args=(server.port, random.Random(SEED + n)))
            for n in range(4)
        ]
        for one in storm:
            one.start()
        while any(one.is_alive() for one in storm):
            server.check_serving()
        server.check_serving()
        assert server.peak() - before < 2 * (16 << 20) + 20 * MB
