"""What `headwater outbox` promises on the command line."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import headwater
from headwater import Headwater
from headwater.outbox import Outbox
from tests.support.commands import PROGRAM, run, running
from tests.support.servers import Server, until
from tests.support.stores import Stores


@pytest.fixture
def store_url(stores: Stores) -> str:
    return stores.url("plain")


def streaming(
    url: str, database_url: str, *words: str
) -> AbstractContextManager[subprocess.Popen[str]]:
    return running(url, "outbox", "stream", "--db", database_url, *words)


def stage(outbox: Outbox, name: str, count: int) -> None:
    with outbox.engine.begin() as conn:
        outbox.stage_many(conn, name, [("t", b"v")] * count)


def test_the_tables_are_created(store_url: str, database_url: str) -> None:
    if database_url.startswith("postgres"):
        before = run(store_url, "outbox", "status", "--db", database_url)
        assert before.code == 1
        assert "no table" in before.err
    assert run(store_url, "outbox", "create", "--db", database_url) == (
        0,
        "the tables of the outbox are there\n",
        "",
    )
    assert run(store_url, "outbox", "create", "--db", database_url) == (
        0,
        "the tables of the outbox are there\n",
        "",
    )
    row = run(store_url, "outbox", "status", "--db", database_url, "--json").row
    assert (row["backlog"], row["oldest_ms"], row["streaming"]) == (0, None, False)


def test_the_status_shows_what_is_staged_and_where_consumers_are(
    store_url: str, outbox: Outbox, database_url: str, name: str
) -> None:
    stage(outbox, name, 3)
    with outbox.engine.begin() as conn:
        conn.exec_driver_sql(
            "INSERT INTO headwater_checkpoints VALUES ('totals', 'rides', 7, 0, NULL)"
        )
    found = run(store_url, "outbox", "status", "--db", database_url)
    assert found.code == 0
    assert "3 rows" in found.out
    assert "totals" in found.out
    row = run(store_url, "outbox", "status", "--db", database_url, "--json").row
    assert row["backlog"] == 3
    assert row["checkpoints"][0]["next_offset"] == 7
    assert row["oldest_ms"] >= 0


def test_it_streams_until_it_is_asked_to_stop(
    store_url: str, outbox: Outbox, hw: Headwater, database_url: str, name: str
) -> None:
    stage(outbox, name, 2500)
    with streaming(store_url, database_url, "--every", "0.1") as process:
        until(lambda: hw.stream(name).info().last == 2500)
        stage(outbox, name, 1)
        until(lambda: hw.stream(name).info().last == 2501)
        until(lambda: outbox.status().streaming)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    lines = out.splitlines()
    assert lines[-1] == "streamed 2501 rows"
    assert all("backlog" in line and "rows/s" in line for line in lines[:-1])
    assert (outbox.status().backlog, outbox.status().claimed) == (0, 0)


def test_on_a_terminal_it_shows_a_live_view(
    store_url: str, outbox: Outbox, hw: Headwater, database_url: str, name: str
) -> None:
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [PROGRAM, "outbox", "stream", "--db", database_url, "--store", store_url],
        stdin=its,
        stdout=its,
        stderr=its,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(its)
    seen = b""

    def shows(*words: bytes) -> bool:
        nonlocal seen
        while select.select([ours], [], [], 0)[0]:
            seen += os.read(ours, 65536)
        return all(word in seen for word in words)

    try:
        until(lambda: shows(b"leads", b"rows/s", b"backlog", b"oldest"))
        stage(outbox, name, 1234)
        until(lambda: hw.stream(name).info().last == 1234)
        until(lambda: shows(b"1234 rows"))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        with contextlib.suppress(OSError):
            until(lambda: shows(b"streamed 1234 rows"))
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"Traceback" not in seen


def test_an_outage_is_one_line_and_its_end_another(
    outbox: Outbox, database_url: str, name: str
) -> None:
    with (
        Server(fsync="always", tcp=True) as server,
        streaming(server.url, database_url) as process,
        headwater.connect(server.url) as hw,
    ):
        stage(outbox, name, 1)
        until(lambda: hw.stream(name).info().last == 1)
        server.kill()
        stage(outbox, name, 1)
        assert process.stderr is not None
        assert "held up" in process.stderr.readline()
        server.restart()
        assert "works again" in process.stderr.readline()
        until(lambda: hw.stream(name).info().last == 2)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert out.splitlines()[-1] == "streamed 2 rows"


@pytest.mark.parametrize("command", ["status", "stream"])
@pytest.mark.parametrize(
    ("db", "says"),
    [
        ("nonsense", "sqlite:///file"),
        ("oracle://u:secret@h/d", "sqlite:///file"),
        ("mysql://u:secret@h/d", "sqlite:///file"),
        ("postgresql://u:secret@127.0.0.1:1/d", "cannot reach the database"),
        ("postgres://u:secret@127.0.0.1:1/d", "cannot reach the database"),
        ("postgresql://u@127.0.0.1:1/d?password=secret", "cannot reach the database"),
        ("postgresql://u@127.0.0.1:1/d?sslpassword=secret", "cannot reach the database"),
        ("host=127.0.0.1 port=1 password=secret", "sqlite:///file"),
        ("sqlite:////nowhere/at/all.db", "no such file"),
    ],
)
def test_a_database_that_cannot_be_reached_is_one_line_without_secrets(
    store_url: str, command: str, db: str, says: str
) -> None:
    found = run(store_url, "outbox", command, "--db", db)
    assert found.code == 1
    assert says in found.err
    assert found.err.startswith("error: ")
    assert found.err.count("\n") == 1
    assert "secret" not in found.err


def test_a_typing_error_makes_no_file(store_url: str, tmp_path: Path) -> None:
    assert run(store_url, "outbox", "stream", "--db", f"sqlite:///{tmp_path}/slip.db").code == 1
    assert list(tmp_path.iterdir()) == []


def test_missing_tables_are_an_error_before_anything_is_shown(
    store_url: str, tmp_path: Path
) -> None:
    (tmp_path / "empty.db").touch()
    found = run(store_url, "outbox", "stream", "--db", f"sqlite:///{tmp_path}/empty.db")
    assert (found.code, found.out) == (1, "")
    assert "no table" in found.err
