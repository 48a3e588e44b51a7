"""Whatever is killed of an application, each message is handled, and a clean stop leaves no wait.

An independent checker reads the notes of the handlers themselves. The deadline of messages is ten
minutes where nothing but the end of a drain can return them in time.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.app.processes import Begin, send
from tests.support.apps import PARTS, TARGET, NotingApp
from tests.support.pages import ROOT
from tests.support.processes import is_alive
from tests.support.servers import Server, until
from tests.support.stores import Stores

pytestmark = pytest.mark.fault


def values(count: int) -> list[bytes]:
    return [b"m%d" % n for n in range(count)]


@pytest.fixture
def app(stores: Stores, name: str, tmp_path: Path) -> NotingApp:
    return NotingApp(stores.url("plain"), name, tmp_path)


def test_sigterm_in_the_middle_of_handlers_returns_everything_at_once(app: NotingApp) -> None:
    app.shut()
    app.write(values(9))
    with app.running("--drain", "100ms") as program:
        processes = program.begun(2)
        assert program.end() == 0
        assert "messages were not done in time, and are returned" in program.log()
        assert not any(map(is_alive, processes))
        assert app.waiting() == dict.fromkeys(PARTS, 9)
        assert not [note for note in app.notes() if note.what == "end"]


def test_sigterm_lets_handlers_end_that_have_begun(app: NotingApp) -> None:
    app.shut()
    app.write(values(12))
    with app.running("--drain", "10m") as program:
        program.begun(2)
        program.send(signal.SIGTERM)
        begun = app.notes()
        app.open()
        assert program.wait() == 0
        ended = [note[1:] for note in app.notes() if note.what == "end"]
        assert {note[1:] for note in begun} <= set(ended)
        left = app.waiting()
        # What ended is acknowledged, and all the rest can be had at once.
        assert {part: 12 - count for part, count in left.items()} == {
            part: sum(note[0] == part for note in ended) for part in PARTS
        }


def test_a_second_signal_ends_at_once_and_returns_everything(app: NotingApp) -> None:
    app.shut()
    app.write(values(5))
    with app.running("--drain", "10m") as program:
        program.begun(2)
        program.send(signal.SIGTERM)
        until(lambda: "a second signal ends that" in program.log())
        assert program.end() == 0
        assert app.waiting() == dict.fromkeys(PARTS, 5)


def test_when_the_runner_is_killed_its_processes_end_and_return_everything(app: NotingApp) -> None:
    app.shut()
    app.write(values(40))
    with app.running("--workers", "2", "--drain", "100ms") as program:
        processes = program.begun(2, processes=2)
        assert program.end(signal.SIGKILL) == -signal.SIGKILL
        until(lambda: not any(map(is_alive, processes)))
        assert app.waiting() == dict.fromkeys(PARTS, 40)


def test_a_process_that_is_killed_is_started_again_and_its_messages_are_handled(
    stores: Stores, name: str, tmp_path: Path
) -> None:
    app = NotingApp(stores.url("plain"), name, tmp_path, ack="500ms")
    app.shut()
    app.write(values(6))
    with app.running() as program:
        (first,) = program.begun(2)
        os.kill(first, signal.SIGKILL)
        app.open()
        until(lambda: app.done(values(6)), 60)
        said = r"process 0 \(stream_sync, .*\) was killed by signal 9 \(SIGKILL\), and is started"
        assert re.search(said, program.log())
        assert program.end() == 0
    assert {note.process for note in app.notes() if note.what == "end"} - {first}


def test_a_process_whose_runner_died_before_it_answered_ends_in_silence() -> None:
    commands, order = os.pipe()
    answer, reports = os.pipe()
    send(order, Begin(TARGET, None, None, [], [], "text", 0, check=False, memory=0))
    os.close(order)
    os.close(answer)
    words = [sys.executable, "-m", "headwater.app.child", str(commands), str(reports)]
    child = subprocess.run(
        words, pass_fds=(commands, reports), cwd=ROOT, capture_output=True, check=False
    )
    os.close(commands)
    os.close(reports)
    assert (child.returncode, child.stderr) == (0, b"")


@pytest.mark.slow
def test_each_message_is_handled_whatever_is_killed(name: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("HEADWATER_SEED", random.randrange(10**6)))
    turns = 3 * int(os.environ["HEADWATER_LONG"]) if "HEADWATER_LONG" in os.environ else 2
    print(f"HEADWATER_SEED={seed}")
    dice = random.Random(seed)
    with Server(fsync="always") as server:
        app = NotingApp(server.url, name, tmp_path, ack="300ms")
        written: list[bytes] = []
        with app.running("--workers", "2", "--drain", "1s", NOTES_PROCESSES="1") as program:
            for turn in range(turns):
                more = [b"m%d-%d" % (turn, n) for n in range(40)]
                app.write(more)
                written += more
                until(lambda: len(app.notes()) > dice.randrange(50, 150) * (turn + 1))  # noqa: B023
                victims = {note.process for note in app.notes()}
                alive = [pid for pid in sorted(victims) if is_alive(pid)]
                if alive and turn % 3 != 1:
                    os.kill(dice.choice(alive), dice.choice([signal.SIGKILL, signal.SIGTERM]))
                else:
                    server.kill()
                    server.start()
            until(lambda: app.done(written), 120)
            assert program.end() == 0
