"""What SIGTERM and Ctrl-C do to a program that runs until it is told, however it was started."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headwater.kernel.stopping import STOP_SIGNALS, StopSignal, stop_on_signals, wait_for_any

THREADS = """
    from headwater.kernel.stopping import StopSignal, stop_on_signals
    stop = StopSignal()
    with stop_on_signals(stop.set):
        print("ready", flush=True)
        stop.wait(60)
        print("stopped", stop.is_set(), flush=True)
"""
TASKS = """
    import asyncio
    from headwater.kernel.stopping import stop_on_signals
    async def run():
        stop = asyncio.Event()
        with stop_on_signals(stop.set):
            print("ready", flush=True)
            await asyncio.wait_for(stop.wait(), 60)
            print("stopped", stop.is_set(), flush=True)
    with asyncio.Runner({loop}) as runner:
        runner.run(run())
"""
PROGRAMS = {
    "threads": THREADS,
    "tasks": TASKS.format(loop=""),
    "uvloop": "    import uvloop\n" + TASKS.format(loop="loop_factory=uvloop.new_event_loop"),
}
# Work that would never end by itself. It does not pause until a signal comes: one that comes just
# before would be noticed with the next one only.
LONG = """
    import select
    from headwater.kernel.stopping import StopSignal, stop_on_signals
    stop = StopSignal()
    with stop_on_signals(stop.set):
        print("ready", flush=True)
        stop.wait(60)
        print("stopping", flush=True)
        while True:
            select.poll().poll(10)
"""


@contextmanager
def program(text: str, *, ignoring: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Run a program until it says that it is ready, with SIGINT ignored or not."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignoring else signal.SIG_DFL)
    try:
        running = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(text)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        yield running
        running.kill()


@pytest.mark.parametrize("ignoring", [False, True], ids=["foreground", "background"])
@pytest.mark.parametrize("number", STOP_SIGNALS)
@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_signal_stops_the_work_and_the_program_ends_well(
    kind: str, number: signal.Signals, ignoring: bool
) -> None:
    with program(PROGRAMS[kind], ignoring=ignoring) as running:
        running.send_signal(number)
        out, err = running.communicate(timeout=60)
    assert (out, err, running.returncode) == ("stopped True\n", "", 0)


@pytest.mark.parametrize("ignoring", [False, True], ids=["foreground", "background"])
def test_ctrl_c_once_more_does_not_wait_for_the_work(ignoring: bool) -> None:
    with program(LONG, ignoring=ignoring) as running:
        assert running.stdout is not None
        running.send_signal(signal.SIGINT)
        assert running.stdout.readline() == "stopping\n"
        running.send_signal(signal.SIGTERM)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
    assert err.rstrip().endswith("KeyboardInterrupt")


def test_the_handlers_from_before_come_back() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        stop = StopSignal()
        with stop_on_signals(stop.set):
            signal.raise_signal(signal.SIGTERM)
        assert (stop.is_set(), heard) == (True, [])
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_thread_beside_the_main_one_cannot_wait_for_signals() -> None:
    refused = threading.Event()

    def wait() -> None:
        with pytest.raises(ValueError, match="main thread"), stop_on_signals(refused.clear):
            pass
        refused.set()

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert refused.is_set()


class PollThatMisses:
    """A poll that has begun just after a signal came: it does not end before its time."""

    def __init__(self, stop: StopSignal) -> None:
        self._stop = stop
        self.asked_ms: list[float] = []

    def register(self, *_: object) -> None:
        """Accept what is waited for."""

    def poll(self, wait_ms: float) -> list[tuple[int, int]]:
        """Return nothing at first; the handler of the signal runs after that."""
        self.asked_ms.append(wait_ms)
        if len(self.asked_ms) == 1:
            self._stop.set()
            return []
        return [(0, 1)]


@pytest.mark.parametrize("seconds", [600.0, None])
def test_a_signal_that_comes_just_before_a_wait_begins_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, seconds: float | None
) -> None:
    stop = StopSignal()
    missing = PollThatMisses(stop)
    monkeypatch.setattr("headwater.kernel.stopping.select.poll", lambda: missing)
    assert wait_for_any([stop], seconds)
    assert len(missing.asked_ms) == 2
    assert max(missing.asked_ms) <= 1000


def test_a_wait_ends_in_its_time() -> None:
    assert not wait_for_any([StopSignal()], 0)
    assert not StopSignal().wait(0.01)
