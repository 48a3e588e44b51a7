"""Processes of an application that are replaced: because its files changed, or its memory grew."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import headwater
from tests.support.commands import PROGRAM
from tests.support.processes import is_alive
from tests.support.servers import until
from tests.support.stores import Stores

MODULE = """
import os, threading
from pathlib import Path
import headwater
app = headwater.App()
hoard = []
@app.worker(queue="{queue}", name="{part}", timeout="4s", backoff="10ms")
def work(job):
    if job.value == b"stuck" and job.attempt == 1:
        Path("stuck").write_text(str(os.getpid()))
        threading.Event().wait()
    if job.value == b"hoard":
        hoard.append(b"x" * 300_000_000)
    with Path("notes").open("a") as notes:
        notes.write(f"{part} {{job.value.decode()}} {{os.getpid()}}\\n")
"""


class Shop:
    """A module that a test changes while it runs."""

    def __init__(self, folder: Path, url: str, queue: str) -> None:
        self.folder = folder
        self.url = url
        self.queue = queue

    def declare(self, part: str) -> None:
        (self.folder / "shop.py").write_text(MODULE.format(queue=self.queue, part=part))

    def notes(self) -> list[list[str]]:
        file = self.folder / "notes"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def handled(self, value: str) -> list[str]:
        """Push a message, and wait for the note of its handler."""
        with headwater.connect(self.url) as hw:
            hw.queue(self.queue).push(value)
        return next(iter(until(lambda: [note for note in self.notes() if note[1] == value], 60)))

    @contextmanager
    def running(self, *words: str) -> Iterator[None]:
        with (self.folder / "log").open("w") as log:
            process = subprocess.Popen(
                [PROGRAM, "run", "shop:app", "--no-view", *words],
                env=os.environ | {"HEADWATER_URL": self.url, "PYTHONDONTWRITEBYTECODE": "1"},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        try:
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def shop(stores: Stores, name: str, tmp_path: Path) -> Shop:
    return Shop(tmp_path, stores.url("plain"), name)


def test_a_changed_file_starts_the_application_again_and_a_wrong_one_is_waited_for(
    shop: Shop,
) -> None:
    shop.declare("first")
    with shop.running("--reload"):
        assert shop.handled("a")[0] == "first"
        (shop.folder / "shop.py").write_text("app = nothing")
        until(lambda: "NameError" in shop.log(), 60)
        shop.declare("second")
        assert shop.handled("b")[0] == "second"
    assert f"{shop.folder / 'shop.py'} changed: the application is started again" in shop.log()


def test_a_process_past_its_memory_or_with_a_stuck_handler_is_drained_and_replaced(
    shop: Shop,
) -> None:
    shop.declare("work")
    with shop.running("--max-memory", "250MB"):
        # A thread cannot be stopped: its message is retried, and its process has to go.
        assert shop.handled("stuck")[:2] == ["work", "stuck"]
        until(lambda: "has a handler of work that runs past its time" in shop.log(), 60)
        stuck = int((shop.folder / "stuck").read_text())
        until(lambda: not is_alive(stuck), 60)
        greedy = shop.handled("hoard")[2]
        until(lambda: " MB, and --max-memory allows 250 MB" in shop.log(), 60)
        values = (f"x{n}" for n in range(1000))
        until(lambda: shop.handled(next(values))[2] != greedy, 60)
    assert re.search(
        r"process 0 \(work\) uses [34]\d\d MB, and --max-memory allows 250 MB: it is drained",
        shop.log(),
    )
    assert "is started again in 0.5 s; raise --max-memory, or let its handlers" in shop.log()
    assert "was killed" not in shop.log()


def test_a_limit_that_a_fresh_process_exceeds_is_refused_with_one_that_would_do(
    shop: Shop,
) -> None:
    shop.declare("work")
    with (shop.folder / "shop.py").open("a") as module:
        module.write("hoard.append(b'x' * 200_000_000)")
    answer = subprocess.run(
        [PROGRAM, "run", "shop:app", "--no-view", "--max-memory", "100MB"],
        env=os.environ | {"HEADWATER_URL": shop.url},
        cwd=shop.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (answer.returncode, answer.stdout) == (2, "")
    assert re.search(
        r"^error: --max-memory: a process of this application uses 2\d\d MB before its first "
        r"message, and 100 MB are allowed; give room to work, as \d\d0MB$",
        answer.stderr,
        re.MULTILINE,
    )
