"""Runs the application of whole_app, kills what it stands on, and checks what its handlers noted.

The checker knows what was committed to the database, and reads the pages of the handlers, the table
of the consumer, the stream and the history of the timed job. It trusts no count of the application.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from headwater import DueRun, TimedRunner, Worker
from headwater.outbox import Outbox
from headwater.testing import PrivateStore
from headwater.timed.states import JobSpec
from tests.support import whole_app
from tests.support.commands import PROGRAM
from tests.support.limit_rules import overtaken
from tests.support.pages import ROOT
from tests.support.postgres import Postgres
from tests.support.processes import children, is_alive
from tests.support.servers import until
from tests.support.timed import HistoryChecker
from tests.support.timed_processes import JobHistory, every_moment, read_notes

TARGET = "tests.support.whole_app:app"
# Longer than any message or run is held by somebody who died.
LATER_MS = 11 * 60_000


class WholeRun:
    """One application on a store and a database of its own, with all that is known of it."""

    def __init__(
        self, hw: PrivateStore, postgres: Postgres, folder: Path, dice: random.Random
    ) -> None:
        self.hw, self.postgres, self.folder, self._dice = hw, postgres, folder, dice
        self.url = postgres.database()
        self.engine = sa.create_engine(self.url, pool_pre_ping=True)
        self._outbox = Outbox(self.engine)
        self._outbox.create_all()
        whole_app.ledger.create(self.engine)
        self.staged: list[tuple[str, str]] = []
        options = {"missed": "all", "overlap": "allow", "max_attempts": 1000}
        every_ms = whole_app.EVERY_MS
        spec = JobSpec(every_ms=every_ms, **options)  # type: ignore[arg-type]
        self._ticks = HistoryChecker(spec, every_moment(every_ms))
        self._history = JobHistory(hw, "tick", self._ticks)
        self._runner: subprocess.Popen[bytes] | None = None

    # ── Running ──────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start the program."""
        own = {"WHOLE_NAME": "whole", "WHOLE_FOLDER": str(self.folder)}
        own |= {"HEADWATER_URL": self.hw.url, "HEADWATER_DB": self.url}
        with (self.folder / "log").open("ab") as log:
            self._runner = subprocess.Popen(
                [PROGRAM, "run", TARGET, "--no-view", "--drain", "200ms"],
                env=os.environ | own,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def end(self, number: int) -> None:
        """End the program by a signal; all of its processes end."""
        assert self._runner is not None
        processes = self.processes()
        self._runner.send_signal(number)
        assert self._runner.wait(60) == (0 if number == signal.SIGTERM else -number)
        until(lambda: not any(map(is_alive, processes)), 60)

    def processes(self) -> list[int]:
        """Return the processes of the application that live, without the supervisor."""
        assert self._runner is not None
        parent = self._runner.pid
        return list(children(parent))

    def close(self) -> None:
        """Kill what is left."""
        if self._runner is not None:
            self._runner.kill()
            self._runner.wait()
        self.engine.dispose()

    # ── What is asked of it ──────────────────────────────────────────────────────────────────

    def stage(self, count: int) -> None:
        """Stage messages in some transactions; some of these are rolled back."""
        for _ in range(4):
            rows = [
                (f"t{self._dice.randrange(12)}", f"{len(self.staged) + n}")
                for n in range(count // 4)
            ]
            with self.engine.begin() as conn:
                for tag, value in rows:
                    self._outbox.stage(conn, "whole", tag, value.encode())
            self.staged += rows
            with contextlib.suppress(LookupError), self.engine.begin() as conn:
                self._outbox.stage(conn, "whole", "t0", b"never")
                raise LookupError("rolled back")

    def shut(self) -> None:
        """Let handlers that begin not end."""
        (self.folder / "gate").touch()

    def open(self) -> None:
        """Let handlers end."""
        (self.folder / "gate").unlink()

    def noted(self, page: str) -> list[str]:
        """Return the notes of a page."""
        file = self.folder / page
        return file.read_text().splitlines() if file.exists() else []

    def progress(self) -> int:
        """Return how much was noted in all."""
        return sum(len(self.noted(page)) for page in ("in_order", "from_queue", "tick"))

    def later(self) -> None:
        """Let the time pass after which nobody waits any more for those who died."""
        self.hw.clock.advance(LATER_MS)
        self._history.follow()

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; whenever that takes a while, let the time of the store pass."""
        looked = time.monotonic()

        def is_met() -> bool:
            nonlocal looked
            if condition():
                return True
            if time.monotonic() > looked + 1:
                looked = time.monotonic()
                self.later()
            return False

        until(is_met, 120)

    # ── Killing ──────────────────────────────────────────────────────────────────────────────

    def kill_store(self) -> None:
        self.hw.kill()
        self.hw.start()

    def kill_database(self) -> None:
        self._dice.choice([self.postgres.kill, self.postgres.stop])()
        self.postgres.start()

    def kill_process(self) -> None:
        """Kill one of the processes, or all of them."""
        found = self.processes()
        for pid in found if self._dice.random() < 0.3 else [self._dice.choice(found)]:
            os.kill(pid, self._dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))

    def kill_runner(self) -> None:
        self.end(signal.SIGKILL)
        self.start()

    def kill_handler(self, part: str, step: str) -> None:
        """Have the next handler of a part die at a step."""
        file = self.folder / f"die {part} {step}"
        file.touch()
        self.stage(4)
        self.until(lambda: not file.exists())

    # ── Checking ─────────────────────────────────────────────────────────────────────────────

    def is_done(self) -> bool:
        """Return whether the handlers noted all that was committed."""
        done = {line for line in self.noted("in_order") if line.startswith("done")}
        values = {value for _, value in self.staged}
        return (
            len(done) == len(self.staged)
            and set(self.noted("from_queue")) == values
            and self.is_applied()
        )

    def is_applied(self) -> bool:
        """Return whether the consumer has applied as many messages as were committed."""
        return len(self.applied()) >= len(self.staged)

    def applied(self) -> list[tuple[int, str]]:
        """Return the rows of the consumer."""
        with self.engine.connect() as conn:
            return [(at, value) for at, value in conn.execute(sa.select(whole_app.ledger))]

    def finish_here(self) -> None:
        """Handle in this process what a clean stop left; no time may be needed for that."""

        def handle(message: object) -> None:
            offset, tag = message.offset, message.tag  # type: ignore[attr-defined]
            pages.append(f"begin {tag} {offset}")
            pages.append(f"done {tag} {offset}")

        pages: list[str] = []
        group = self.hw.stream("whole").group(whole_app.GROUP)
        worker = Worker(group, handle, ordered=True, ack_ms=LATER_MS)
        until(lambda: not worker.run_once() and group.info().lag == 0 and not group.info().pending)
        with (self.folder / "in_order").open("a") as page:
            page.writelines(f"{line}\n" for line in pages)

    def finish_ticks(self) -> None:
        """Run here what is left of the timed job, and check all of it."""
        runner = TimedRunner(self.hw)

        def tick(run: DueRun) -> None:
            words = f"{run.due_ms} {run.attempt} {int(run.by_hand)}"
            with (self.folder / "tick").open("a") as page:
                page.write(f"{words} 0\n{words} 1\n")

        options = {"missed": "all", "overlap": "allow", "max_attempts": 1000}
        runner.every(whole_app.EVERY_MS, name="tick", **options)(tick)  # type: ignore[arg-type]
        while True:
            runner.run_due()
            self._history.follow()
            if not self._ticks.active:
                break
            self.later()
        self._ticks.check_notes(read_notes(self.folder / "tick"))
        assert self._ticks.verdicts.keys() == {"due"}

    def check(self) -> None:
        """Check every promise by what was noted."""
        messages = self.hw.stream("whole").read(1, 1_000_000)
        written = [(m.offset, m.tag, m.value.decode()) for m in messages if m is not None]
        # The outbox: what was committed, each row once, in its order.
        assert [(tag, value) for _, tag, value in written] == self.staged
        # The worker in order: each message at least once, none before another of its tag.
        notes = self.noted("in_order")
        assert overtaken(notes, {at: tag for at, tag, _ in written}, frozenset()) == []
        done = {line for line in notes if line.startswith("done")}
        assert done == {f"done {tag} {at}" for at, tag, _ in written}
        # The consumer: each message once, whatever was repeated.
        assert Counter(self.applied()) == Counter((at, value) for at, _, value in written)
