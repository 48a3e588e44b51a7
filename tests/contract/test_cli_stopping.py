"""Commands that run for long end when they are told, also if a shell put them in the background."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import headwater
from headwater import Headwater
from headwater.kernel.stopping import STOP_SIGNALS
from headwater.outbox import Outbox
from headwater.sql.engines import open_engine
from tests.support.commands import line_of, running
from tests.support.servers import until
from tests.support.stores import Stores

INTERRUPTED = 130


class Case(NamedTuple):
    """A command that runs until it is told, once it has printed a line."""

    words: tuple[str, ...]
    code: int = 0


def tail(hw: Headwater, name: str, _: Path) -> Case:
    hw.stream(name).write("tag", b"value")
    return Case(("stream", "tail", name))


def work(hw: Headwater, name: str, _: Path) -> Case:
    hw.queue(name).push(b"value")
    return Case(("queue", "work", name, "--exec", "echo done"))


def keep(hw: Headwater, name: str, _: Path) -> Case:
    hw.stream(name).retain(max_count=1)
    hw.stream(name).write_many([("tag", b"value")] * 5)
    return Case(("keep", "--stream", name))


def outbox(_: Headwater, __: str, directory: Path) -> Case:
    database = f"sqlite:///{directory}/outbox.db"
    with open_engine(database, new=True) as engine:
        Outbox(engine).create_all()
    return Case(("outbox", "stream", "--db", database))


def walk(hw: Headwater, _: str, __: Path) -> Case:
    return Case(("timeline", "walk", "--instances", hw.store.where))


def serve(hw: Headwater, _: str, __: Path) -> Case:
    return Case(("timeline", "serve", "--instances", hw.store.where, "--port", "0"))


def demo(_: Headwater, __: str, ___: Path) -> Case:
    return Case(("demo", "--messages", "100000"), INTERRUPTED)


def verify(_: Headwater, __: str, ___: Path) -> Case:
    return Case(("verify", "--seconds", "600", "--kills", "0"), INTERRUPTED)


Make = Callable[[Headwater, str, Path], Case]
CASES: dict[str, Make] = {
    make.__name__: make for make in (tail, work, keep, outbox, walk, serve, demo, verify)
}


@pytest.mark.parametrize("number", STOP_SIGNALS)
@pytest.mark.parametrize("case", CASES)
def test_a_command_in_the_background_ends_by_a_signal(
    stores: Stores, name: str, tmp_path: Path, case: str, number: signal.Signals
) -> None:
    url = stores.url("plain")
    with headwater.connect(url) as hw:
        words, code = CASES[case](hw, name, tmp_path)
    (tmp_path / "tmp").mkdir()
    own = {"TMPDIR": str(tmp_path / "tmp")}
    with running(url, *words, ignoring=True, env=own, start_new_session=True) as process:
        assert line_of(process)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, "Traceback" in err) == (code, False)
        # Nothing is left behind: neither processes nor files.
        until(lambda: not is_there(process.pid))
    assert list((tmp_path / "tmp").iterdir()) == []


def is_there(group: int) -> bool:
    """Return whether a group of processes has any."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", STOP_SIGNALS)
@pytest.mark.parametrize(
    ("words", "deed"), [(("stream", "write"), "written"), (("queue", "push"), "pushed")]
)
def test_a_command_that_reads_lines_says_how_far_it_came(
    stores: Stores, name: str, words: tuple[str, ...], deed: str, number: signal.Signals
) -> None:
    url = stores.url("plain")
    with headwater.connect(url) as hw, running(url, *words, name, ignoring=True) as process:
        feed(process, "one\ntwo\n")
        until(lambda: arrived(hw, name) == 2)
        feed(process, "three\n")
        until(lambda: arrived(hw, name) == 3)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    # The answer to the last line may still have been on its way.
    assert err.startswith((f"{deed} before that: 2 messages", f"{deed} before that: 3 messages"))


def feed(process: subprocess.Popen[str], lines: str) -> None:
    assert process.stdin is not None
    process.stdin.write(lines)
    process.stdin.flush()


def arrived(hw: Headwater, name: str) -> int:
    return hw.stream(name).info().length + hw.queue(name).stats().ready
