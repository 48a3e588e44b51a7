"""``headwater run``: one command checks and runs all parts, in processes that it keeps alive."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.app.application import load_app
from headwater.errors import InvalidInput
from tests.support import commands
from tests.support.apps import PARTS, NotingApp, RunningProgram
from tests.support.commands import run
from tests.support.processes import is_alive
from tests.support.servers import until
from tests.support.stores import Stores

VALUES = [b"m%d" % n for n in range(20)]


class Running:
    """An application that runs for all tests of this module, with a port to watch it."""

    def __init__(self, app: NotingApp, program: RunningProgram) -> None:
        self.app = app
        self.program = program
        found = until(lambda: re.search(r"metrics on (http://[\d.:]+)/metrics", program.log()), 60)
        self.url = found[1]

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    def metric(self, name: str) -> int:
        found = re.search(rf"^{re.escape(name)} (\d+)$", self.get("/metrics")[1], re.MULTILINE)
        return int(found[1]) if found else 0

    def records(self) -> list[Any]:
        return [json.loads(line) for line in self.program.log().splitlines() if line[0] == "{"]


@pytest.fixture(scope="module")
def running(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("app")
    app = NotingApp(stores.url("plain"), f"app-{folder.parent.name}-{folder.name}", folder)
    words = ("--workers", "2", "--log", "json", "--http", "127.0.0.1:0")
    app.write([*VALUES, b"fail"])
    with app.running(*words, NOTES_PROCESSES="1") as program:
        running = Running(app, program)
        until(lambda: app.done([*VALUES, b"fail"]), 60)
        yield running
        assert program.end() == 0


def test_all_parts_run_in_all_processes(running: Running) -> None:
    until(lambda: running.get("/readyz") == (200, "ok\n"), 60)
    assert running.get("/healthz") == (200, "ok\n")


def test_metrics_are_the_sum_of_all_processes(running: Running) -> None:
    total = len(VALUES) + 1
    for part in PARTS:
        until(lambda: running.metric(f'headwater_part_done_total{{part="{part}"}}') == total)  # noqa: B023
    until(lambda: running.get("/readyz")[0] == 200, 60)
    expected = {"keep": 1, "queue_async": 1, **dict.fromkeys(PARTS[:4], 2)}
    for part, processes in expected.items():
        assert running.metric(f'headwater_part_processes{{part="{part}"}}') == processes
    done = running.metric('headwater_operation_messages_total{op="worker.handle"}')
    assert done == total * len(PARTS)
    # Once for each sync part: of async ones, "fail" is a message like any other.
    assert running.metric('headwater_part_failed_total{part="queue_sync"}') == 1
    until(lambda: 'headwater_part_lag{part="queue_sync"} 0' in running.get("/metrics")[1])
    page = running.get("/metrics")[1].splitlines()
    series = [line.rpartition(" ")[0] for line in page if not line.startswith("#")]
    assert sorted(series) == sorted(set(series))


def test_log_lines_name_part_object_and_message(running: Running) -> None:
    name = running.app.name
    failed = next(r for r in running.records() if r.get("error") == "LookupError")
    own = next(r for r in running.records() if r["message"] == "about to fail")
    for record in (failed, own):
        assert record["attempt"] == 1
        assert record["part"] in PARTS
        assert record["object"].startswith(name)
        assert "id" in record or record["offset"] >= 1
    assert "as it was asked to" in failed["traceback"]


@pytest.mark.fault
def test_the_counts_of_a_process_stay_when_it_is_killed(running: Running) -> None:
    done = 'headwater_part_done_total{part="queue_async"}'
    # A process reports about once a second; what it did since then is not known.
    until(lambda: running.metric(done) == len(VALUES) + 1, 60)
    victim = next(note.process for note in running.app.notes() if note.part == "queue_async")
    os.kill(victim, signal.SIGKILL)
    metric = 'headwater_part_restarts_total{part="queue_async"}'
    until(lambda: running.metric(metric) == 1, 60)
    until(lambda: running.get("/readyz")[0] == 200, 60)
    assert running.metric(done) == len(VALUES) + 1
    assert not is_alive(victim)
    died = next(r for r in running.records() if "was killed" in r["message"])
    assert died["message"].startswith("process 2 (queue_async) was killed by signal 9 (SIGKILL)")


# ── Checks ───────────────────────────────────────────────────────────────────────────────────

MODULE = """
import headwater
app = headwater.App()
@app.worker(queue="good")
def good(job): open("ran", "w").close()
@app.worker(queue="bad name", concurrency=0)
def bad(job): ...
app.stream_outbox()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWATER_DB", raising=False)
    return tmp_path


def test_what_is_wrong_is_listed_and_nothing_runs(stores: Stores, folder: Path) -> None:
    (folder / "shop.py").write_text(MODULE)
    url = stores.url("plain")
    found = run(url, "run", "shop:app", "--no-view")
    assert found.code == 2
    listed = [tuple(line.split(": ")[:2]) for line in found.err.splitlines()]
    assert [part for kind, part in listed if kind == "error"] == ["db", "bad", "bad"]
    assert [part for kind, part in listed if kind == "warning"] == ["good"]
    assert not (folder / "ran").exists()
    only = run(url, "run", "shop:app", "--check", "--only", "good")
    assert (only.code, only.out, only.err) == (
        0,
        "shop:app: all parts can run\n",
        "warning: good: the store has no queue 'good' yet; it is made by the first write\n",
    )


@pytest.mark.parametrize(
    ("target", "module", "words"),
    [
        ("nowhere_at_all:app", "", "there is no module 'nowhere_at_all'"),
        ("shop_a:jobs", "import headwater\napp = headwater.App()", "did you mean shop_a:app?"),
        ("shop_b:app", "import nothing_of_that_name", "ModuleNotFoundError"),
        ("a b:app", "", "is not a module and a name"),
        ("shop_c.py", "", "'shop_c.py' is a file; write shop_c:app"),
        ("shop_d.py:jobs", "", "'shop_d.py' is a file; write shop_d:jobs"),
        ("json.nowhere:app", "", "there is no module 'json.nowhere'"),
        ("textwrap.nowhere:app", "", "there is no module 'textwrap.nowhere'"),
    ],
)
def test_an_application_that_cannot_be_loaded_is_a_fault_with_a_cure(
    folder: Path, monkeypatch: pytest.MonkeyPatch, target: str, module: str, words: str
) -> None:
    if module:
        (folder / f"{target.partition(':')[0]}.py").write_text(module)
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(InvalidInput, match=re.escape(words)):
        load_app(target)


@pytest.mark.parametrize("size", ["512", "0", "49MB"])
def test_a_memory_limit_that_no_process_can_keep_is_refused(folder: Path, size: str) -> None:
    (folder / "shop_e.py").write_text("import headwater\napp = headwater.App()\napp.keep()")
    answer = run(None, "run", "shop_e:app", "--max-memory", size)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(
        f"error: Invalid value for '--max-memory': {size} is less than an idle process uses; "
        "give 50MB or more, with the unit, as 512MB"
    )


DYING = """
import os, signal
from pathlib import Path
import headwater
from headwater.app.part_kinds import KeeperPart

app = headwater.App()


@app.worker(queue="dying")
def handle(job):
    Path("handled").touch()


class Odd(KeeperPart):
    def check(self, resources):
        first = not Path("checked").exists()
        Path("checked").touch()
        if first:
            {act}
        return iter(())


app.add(Odd("odd", "10s"))
"""
DEATHS = {
    "os.kill(os.getpid(), signal.SIGKILL)": "was killed by signal 9 (SIGKILL)",
    "raise KeyError('surprise')": "ended with exit code 1",
    "os._exit(7)": "ended with exit code 7",
}


@pytest.mark.parametrize("act", DEATHS)
def test_a_process_that_dies_in_the_check_is_said_in_one_line_and_started_again(
    stores: Stores, folder: Path, name: str, act: str
) -> None:
    (folder / "shop_f.py").write_text(DYING.replace("{act}", act).replace("dying", name))
    url = stores.url("plain")
    with headwater.connect(url) as hw:
        hw.queue(name).push(b"1")
    words = ("run", "shop_f:app", "--no-view")
    with commands.running(url, *words, cwd=folder) as process:
        until(lambda: (folder / "checked").exists() and (folder / "handled").exists())
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    again = [line for line in said.splitlines() if "is started again in 0.5 s" in line]
    assert len(again) == 1
    assert DEATHS[act] in again[0]


@pytest.mark.parametrize("act", DEATHS)
def test_a_check_that_dies_is_a_fault(stores: Stores, folder: Path, act: str) -> None:
    (folder / "shop_g.py").write_text(DYING.replace("{act}", act))
    found = run(stores.url("plain"), "run", "shop_g:app", "--check")
    assert found.code == 2
    assert f"error: application: the process that checks it {DEATHS[act]}" in found.err
    assert "Traceback" not in found.err
