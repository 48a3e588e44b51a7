"""A process that serves nothing can be watched: what it does, and whether it can work."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

import headwater
from headwater.errors import InvalidInput
from headwater.kernel import instrument
from headwater.kernel.declaring import Scope
from headwater.kernel.instrument import Event
from headwater.metrics.exposition import Page
from headwater.outbox import Outbox
from headwater.serve.listening import ListenAddress
from headwater.serve.monitoring import monitored, store_ready
from headwater.serve.readiness import store_missing
from headwater.serve.tokens import Tokens, add_token
from headwater.workers.queue_worker import QueueWorker
from tests.support.commands import PROGRAM
from tests.support.servers import Server, until

LOOPBACK = ListenAddress("127.0.0.1", 0)


def asked(url: str, token: str = "") -> tuple[int, str]:
    """Return the status and the body of an answer."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class Names:
    """An instrument that remembers the names of operations."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.handled: list[Any] = []

    def begin(self, name: str, object: str) -> None: ...

    def begin_handling(self, name: str, object: str, headers: Any) -> None:  # noqa: ARG002
        self.handled += headers

    def end(self, token: Any, event: Event) -> None:  # noqa: ARG002
        self.ended.append(event.name)

    def count(self, name: str, object: str, n: int = 1) -> None: ...


def test_the_work_of_a_worker_is_counted_beside_the_instrument_that_is_installed(
    server: Server,
) -> None:
    own = Names()
    with headwater.connect(server.url) as hw:
        queue = hw.queue("mail")
        queue.push(b"1", headers={"a": b"b"})

        def handle(_: object) -> None:
            worker.stop()

        worker = QueueWorker(queue, handle)
        with instrument.installed(own), monitored(LOOPBACK) as url:
            worker.run()
            status, page = asked(f"{url}/metrics")
        assert instrument.current() is not own
    assert status == 200
    done = 'headwater_operation_duration_seconds_count{op="worker.handle",outcome="ok"} 1'
    assert done in page
    assert "headwater_build_info" in page
    assert "worker.handle" in own.ended
    assert own.handled == [{"a": b"b"}]


def test_who_watches_is_told_that_the_process_lives_and_whether_its_store_answers(
    server: Server,
) -> None:
    with monitored(LOOPBACK, ready=store_ready(server.url)) as url:
        assert asked(f"{url}/readyz") == (200, "ok\n")
        server.kill()
        try:
            status, why = asked(f"{url}/readyz")
        finally:
            server.restart()
        assert status == 503
        assert "store" in why
        assert asked(f"{url}/healthz") == (200, "ok\n")
        assert asked(f"{url}/elsewhere")[0] == 404


def test_only_who_has_a_token_learns_why_a_process_is_not_ready() -> None:
    async def ready() -> str:
        return "the store at redis://db.internal does not answer"

    tokens = Tokens([("sesame-sesame", Scope.READ)])
    with monitored(LOOPBACK, tokens, ready=ready) as url:
        status, why = asked(f"{url}/readyz")
        assert (status, "internal" in why) == (503, False)
        assert "internal" in asked(f"{url}/readyz", "sesame-sesame")[1]


def test_metrics_need_a_token_where_there_are_tokens_and_health_does_not() -> None:
    with pytest.raises(InvalidInput, match="give a token"), monitored(ListenAddress("0.0.0.0", 0)):
        pass
    tokens = Tokens([("sesame-sesame", Scope.READ)])
    with monitored(LOOPBACK, tokens) as url:
        assert asked(f"{url}/metrics", "another")[0] == 401
        assert asked(f"{url}/metrics", "sesame-sesame")[0] == 200
        assert asked(f"{url}/healthz", "another")[0] == 200


def test_a_part_of_the_metrics_that_fails_leaves_the_others() -> None:
    def broken(_: Page) -> None:
        raise InvalidInput("no database")

    def whole(page: Page) -> None:
        page.add("", store_up=1)

    with monitored(LOOPBACK, parts=[broken, whole]) as url:
        status, page = asked(f"{url}/metrics")
    assert status == 200
    assert "headwater_store_up 1" in page


def test_a_streamer_shows_its_outbox_where_it_is_watched(server: Server, tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path}/rides.db"
    outbox = Outbox(engine := create_engine(db))
    outbox.create_all()
    engine.dispose()
    words = [str(PROGRAM), "outbox", "stream", "--db", db, "--store", server.url]
    words += ["--metrics", "127.0.0.1:0"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as streamer:
        try:
            assert streamer.stderr is not None
            lines = (line.decode() for line in streamer.stderr)
            url = next(line.split()[-1] for line in lines if line.startswith("metrics on "))
            until(lambda: "headwater_outbox_leader{" in asked(url)[1])
            assert "headwater_outbox_rows{" in asked(url)[1]
        finally:
            streamer.send_signal(signal.SIGTERM)
        assert streamer.wait(60) == 0


def test_a_store_that_refuses_is_said_to_refuse_and_not_to_be_slow(server: Server) -> None:
    async def refusing() -> str | None:
        async with headwater.aio.connect(server.url) as hw:
            assert await store_missing(hw) is None
            server.kill()
            try:
                return await store_missing(hw)
            finally:
                server.restart()

    why = asyncio.run(refusing())
    assert why is not None
    assert "cannot reach the store" in why
    assert "too slow" not in why


def test_a_store_that_is_frozen_is_said_to_be_too_slow(server: Server) -> None:
    async def frozen() -> str | None:
        async with headwater.aio.connect(server.url) as hw:
            assert await store_missing(hw) is None
            pid = server.pid
            os.kill(pid, signal.SIGSTOP)
            try:
                return await store_missing(hw)
            finally:
                os.kill(pid, signal.SIGCONT)

    assert asyncio.run(frozen()) == "the store does not answer: it is too slow"


def test_the_log_lines_of_a_server_have_their_time_and_level(
    server: Server, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.json"
    add_token(tokens, "ann", {Scope.READ: ["*"]})
    # It is warned that tokens travel in clear text.
    words = [str(PROGRAM), "serve", "--http", "0.0.0.0:0", "--tokens", str(tokens)]
    with subprocess.Popen(
        [*words, "--store", server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as serving:
        assert serving.stdout is not None
        assert serving.stderr is not None
        assert b"serving on" in serving.stdout.readline()
        serving.send_signal(signal.SIGTERM)
        line = serving.stderr.readline().decode()
        assert serving.wait(60) == 0
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING headwater\.serve: ", line)
    assert "clear text" in line
