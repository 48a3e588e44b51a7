"""What the commands promise that run for a while, or besides others, as programs of their own."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from headwater import Headwater
from headwater.store import embedded
from tests.support.commands import line_of, run, running, start
from tests.support.servers import Server, until
from tests.support.stores import Stores


@pytest.fixture
def url(stores: Stores) -> str:
    return stores.url("embedded")


@pytest.fixture
def hw(url: str) -> Iterator[Headwater]:
    with headwater.connect(url) as hw:
        yield hw


# ── tail and write ───────────────────────────────────────────────────────────────────────────


def test_the_tail_follows_until_it_is_interrupted(url: str, hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write("tag", b"old")
    with running(url, "stream", "tail", name, "--json") as process:
        assert json.loads(line_of(process))["value"] == "old"
        for n in range(3):
            stream.write("tag", f"new-{n}")
            assert json.loads(line_of(process))["value"] == f"new-{n}"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


def test_lines_are_written_as_they_come(url: str, hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    with running(url, "stream", "write", name) as process:
        assert process.stdin is not None
        for n in range(1, 4):
            process.stdin.write(f"line {n}\n")
            process.stdin.flush()
            until(lambda: stream.info().last == n)  # noqa: B023  called at once
        out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert out == "written 3 messages, the first at 1, the last at 3\n"


def test_typing_into_a_write_is_left_alone(url: str, hw: Headwater, name: str) -> None:
    here, there = pty.openpty()
    words = (sys.executable, "-m", "headwater", "stream", "write", name, "--store", url)
    with subprocess.Popen(words, stdin=there, stdout=there, stderr=there) as process:
        os.close(there)
        os.write(here, b"one\n\x04")
        assert process.wait(timeout=60) == 0
        screen = os.read(here, 10_000).decode()
    os.close(here)
    assert "\x1b" not in screen, "nothing is drawn over what is typed"
    assert "a message per line; Ctrl-D ends" in screen
    (message,) = hw.stream(name).read(1, 9)
    assert message is not None
    assert message.value == b"one"


def test_an_interrupted_write_says_how_far_it_came(url: str, hw: Headwater, name: str) -> None:
    with running(url, "stream", "write", name) as process:
        assert process.stdin is not None
        for last, lines in ((2, "one\ntwo\n"), (3, "three\n")):
            process.stdin.write(lines)
            process.stdin.flush()
            until(lambda: hw.stream(name).info().last == last)  # noqa: B023  called at once
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    # The answer to the last line may still have been on its way.
    assert err.startswith("written before that: ")
    assert err.strip().endswith(("2 messages, from 1 to 2", "3 messages, from 1 to 3"))


def test_a_reader_that_stops_listening_is_no_fault(url: str, hw: Headwater, name: str) -> None:
    hw.stream(name).write_many([("tag", b"x" * 100)] * 50_000)
    with running(url, "stream", "read", name, "--count", "50000", "--json") as process:
        assert line_of(process)
        assert process.stdout is not None
        process.stdout.close()
        process.wait(timeout=60)
        assert process.stderr is not None
        assert process.stderr.read() == ""


# ── keep ─────────────────────────────────────────────────────────────────────────────────────


def test_a_round_of_the_housekeeper_tells_each_change(url: str, hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.retain(max_count=50)
    stream.auto_compact()
    for _ in range(15):
        stream.write_many([("tag", b"value")] * 100)
    stream.group("g", start="last", dead_letters=True).read(1)
    words = ("keep", "--once", "--stream", name)
    answer = run(url, *words)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines() == [
        f"{name}: sealed 1000 messages",
        f"{name}: evicted 1450 messages",
        f"{name}: compacted 49 messages away",
    ]
    assert run(url, *words) == (0, "", "")
    stream.write_many([("tag", b"value")] * 100)
    stream.group("g").read(200)
    assert run(url, *words, "--json").rows == [
        {"stream": name, "change": "evicted", "count": 51},
        {"stream": name, "change": "compacted", "count": 49},
    ]


def test_the_housekeeper_refuses_a_stream_that_was_never_written(url: str, name: str) -> None:
    answer = run(url, "keep", "--once", "--stream", name)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: there is no stream {name!r}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_many_housekeepers_work_at_once_and_end_when_told(
    url: str, hw: Headwater, name: str, number: signal.Signals
) -> None:
    stream = hw.stream(name)
    stream.retain(max_count=1000)
    stream.write("tag", b"value")
    words = ("keep", "--interval", "0.01", "--stream", name, "--json")
    both_have_worked = threading.Event()

    def write() -> None:
        while not both_have_worked.wait(0.001):
            stream.write_many([("tag", b"value")] * 100)

    with running(url, *words) as first, running(url, *words) as second:
        writer = threading.Thread(target=write)
        writer.start()
        lines = [line_of(first), line_of(second)]
        both_have_worked.set()
        writer.join()
        until(lambda: stream.info().length == 1000)
        for process in (first, second):
            process.send_signal(number)
            assert process.stdout is not None
            lines += process.stdout.read().splitlines()
            assert process.wait(timeout=60) == 0
    changes = [json.loads(line) for line in lines]
    first_offset, last = stream.info().first, stream.info().last
    assert sum(row["count"] for row in changes if row["change"] == "evicted") == first_offset - 1
    assert [m and m.offset for m in stream.read(first_offset, 1000)] == list(
        range(last - 999, last + 1)
    )


def test_the_housekeeper_outlives_a_restart_of_the_store(name: str) -> None:
    with Server(tcp=True, fsync="always") as server, headwater.connect(server.url) as hw:
        stream = hw.stream(name)
        stream.retain(max_count=10)
        stream.write("tag", b"value")
        with running(server.url, "keep", "--interval", "0.01") as process:
            stream.write_many([("tag", b"value")] * 20)
            until(lambda: stream.info().length == 10)
            server.kill()
            server.restart()
            stream.write_many([("tag", b"value")] * 20)
            until(lambda: stream.info().length == 10)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
        assert process.returncode == 0


# ── store ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def directory() -> Iterator[Path]:
    parent = Path(tempfile.mkdtemp(prefix="hw-cli-"))
    yield parent / "store"
    embedded.stop(parent / "store", now=True)
    shutil.rmtree(parent)


def test_a_store_started_by_hand_stays_until_it_is_stopped(directory: Path) -> None:
    url = f"embedded://{directory}"
    idle = run(url, "store", "status", "--json")
    assert (idle.code, idle.row["running"]) == (0, False)
    assert not directory.exists()
    assert "not running" in run(url, "store", "status").out

    begun = run(url, "store", "start", "--json").row
    assert (begun["running"], begun["stays"], begun["directory"]) == (True, True, str(directory))
    run(url, "stream", "write", "s", "tag", "value")
    status = run(url, "store", "status")
    assert str(begun["pid"]) in status.out
    assert "by `headwater store stop`" in status.out

    with headwater.connect(url):
        used = run(url, "store", "stop")
        assert "running" in used.out
        assert used.err == "it is in use, and ends with its last user; --now ends it at once\n"
    until(lambda: not run(url, "store", "status", "--json").row["running"])
    run(url, "store", "start")
    assert run(url, "stream", "read", "s", "--json").row["value"] == "value"
    assert not run(url, "store", "stop", "--now", "--json").row["running"]


def test_only_an_embedded_store_is_started_by_hand() -> None:
    for command in ("start", "stop", "status"):
        answer = run("redis://me:secret@localhost:6379", "store", command)
        assert (answer.code, answer.out) == (1, "")
        assert answer.err == (
            "error: redis://localhost:6379 is not an embedded store; "
            "use --store embedded:///directory\n"
        )


# ── demo ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.fault
def test_the_demo_ends_by_itself_with_every_claim_true(tmp_path: Path) -> None:
    home = Path(tempfile.mkdtemp(prefix="hw-demo-"))
    with running(None, "demo", "--messages", "2000", env={"TMPDIR": str(home)}) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    rows = [line.split() for line in out.splitlines() if line.startswith(("yes", "NO"))]
    assert len(rows) == 18
    assert {row[0] for row in rows} == {"yes"}
    assert ["2000", "2000"] in [row[-2:] for row in rows]
    true, see, remove = out.splitlines()[-3:]
    assert true == "all 18 claims were true"
    # What it made can be looked at as it says, and is gone when it is removed as it says.
    command, url = see.partition("headwater ")[2].rsplit(" ", 1)
    assert command == "console --store"
    with running(None, *command.split(), url, "--no-open") as console:
        assert "the console is at" in line_of(console)
        with headwater.connect(url) as hw:
            assert [name[:5] for name in hw.streams() if not name.startswith("hw.")] == ["demo-"]
    (made,) = home.iterdir()
    assert remove.endswith(f"rm -r {made}")
    assert list(tmp_path.iterdir()) == []
    embedded.discard(Path(url.removeprefix("embedded://")))
    shutil.rmtree(home)


@pytest.mark.fault
def test_the_demo_runs_on_a_store_that_it_is_given(stores: Stores) -> None:
    url = stores.url("plain")
    with running(None, "--store", url, "demo", "--messages", "1000") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "the server is not ours to kill" in out
    with headwater.connect(url) as hw:
        assert not [name for name in hw.streams() if name.startswith("demo-")]


def test_the_demo_exits_with_1_when_a_claim_is_false(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A store that forgets: everything beyond the newest ten is evicted after each write.
    write_many = headwater.Stream.write_many

    def forgetful(stream: headwater.Stream, *args: object, **options: object) -> range:
        offsets = write_many(stream, *args, **options)  # type: ignore[arg-type]
        stream.evict(-10)
        return offsets

    monkeypatch.setattr(headwater.Stream, "write_many", forgetful)
    monkeypatch.setattr("headwater.cli.demo.story._PATIENCE_S", 0.0)
    answer = run(None, "demo", "--messages", "1000", "--store", url)
    assert answer.code == 1
    assert "claims were false" in answer.out.splitlines()[-1]


# ── The program itself ───────────────────────────────────────────────────────────────────────

INTERRUPTED_WHILE_IT_LOADS = """
import os, signal, sys
from headwater.__main__ import main

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "headwater.cli":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


def test_an_interrupt_while_it_loads_prints_nothing() -> None:
    words = [sys.executable, "-c", INTERRUPTED_WHILE_IT_LOADS]
    done = subprocess.run(words, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_output_that_finds_no_room_is_one_line_with_the_cure() -> None:
    words = [sys.executable, "-m", "headwater", "--version"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            words, stdout=full, stderr=subprocess.PIPE, check=False, timeout=60, text=True
        )
    assert (done.returncode, done.stderr) == (
        1,
        "error: the output could not be written (No space left on device); "
        "make room, or write it to another place\n",
    )


@pytest.mark.parametrize("words", [["stream", "-h"], ["--version"]])
def test_a_reader_of_the_help_may_leave_before_its_end(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = [sys.executable, "-m", "headwater", *words]
    try:
        done = subprocess.run(
            program, stdout=writer, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_program_says_its_version() -> None:
    process = start(None, "--version", cwd=os.sep)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (0, f"headwater {headwater.__version__}\n", "")
