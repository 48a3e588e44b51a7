"""A server of several processes outlives each of them, and ends with its parent."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

from tests.support.commands import run, start
from tests.support.farms import DEAD, Replica, one_each
from tests.support.processes import children, is_alive
from tests.support.servers import until
from tests.support.timeline_http import Answer, Client, b64, element, records


def test_it_listens_wider_only_with_a_token() -> None:
    refused = run(None, "timeline", "serve", "--instances", DEAD, "--host", "0.0.0.0")
    assert refused.code == 1
    assert "token" in refused.err
    for words in (
        ["--quorum", "2"],
        ["--port", "70000"],
        ["--read-token", "x"],
        ["--token", ""],
        ["--workers", "0"],
        ["--max-body", "0"],
    ):
        assert run(None, "timeline", "serve", "--instances", DEAD, *words).code == 1


def test_a_server_is_lenient_when_it_is_told_to_be(three: list[Replica]) -> None:
    words = ["timeline", "serve", "--instances", one_each(three), "--port", "0"]
    modes: list[tuple[list[str], int]] = [([], 400), (["--lenient"], 200)]
    for more, status in modes:
        with start(None, *words, *more) as program:
            try:
                assert program.stdout is not None
                port = int(program.stdout.readline().rpartition(":")[2])
                with contextlib.closing(Client(port)) as client:
                    assert client.select("k", query="nonsense=1").status == status
            finally:
                program.terminate()
                assert program.wait(60) == 0


def test_several_processes_serve_one_port_and_outlive_one_that_is_killed(
    three: list[Replica],
) -> None:
    words = ["timeline", "serve", "--instances", one_each(three), "--port", "0", "--workers", "2"]
    with start(None, *words) as program:
        try:
            assert program.stdout is not None
            port = int(program.stdout.readline().rpartition(":")[2])

            def ask(method: str, path: str, content: Any = None) -> Answer:
                with contextlib.closing(Client(port)) as client:
                    return client.ask(method, path, content)

            for number in range(20):
                assert ask("POST", "/", [element("k", number, "m")]).status == 200
            with contextlib.closing(Client(port)) as client:
                assert client.metric("insert_record_count") == 20
            workers = list(children(program.pid))
            assert len(workers) == 2
            os.kill(workers[0], signal.SIGKILL)
            until(lambda: len(set(children(program.pid)) - {workers[0]}) == 2)
            with contextlib.closing(Client(port)) as client:
                assert records(client.select("k"), "k") == [(19, b64("m"))]
                assert client.metric("insert_record_count") == 20
        finally:
            program.terminate()
            assert program.wait(60) == 0


def test_all_processes_end_when_their_parent_is_killed(three: list[Replica]) -> None:
    words = ["timeline", "serve", "--instances", one_each(three), "--port", "0", "--workers", "2"]
    with start(None, *words) as program:
        assert program.stdout is not None
        program.stdout.readline()
        workers = list(children(program.pid))
        assert len(workers) == 2
        program.kill()
        program.wait(60)
        until(lambda: not any(map(is_alive, workers)))
