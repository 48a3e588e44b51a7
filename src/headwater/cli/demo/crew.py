"""The demo's group at work: members as processes, and the count of what they did."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

from headwater.cli.demo.screen import DemoScreen
from headwater.errors import HeadwaterError

News: TypeAlias = "queue.Queue[tuple[str, dict[str, Any]]]"

RETRY_MS = 2500
# Which of its batches the member that gets killed is working on then.
LAST_BATCH = 3
_PATIENCE_S = 60.0


class Member:
    """A process that takes batches of a group's messages; killed in the end, if not before."""

    def __init__(
        self, url: str, stream: str, name: str, batch: int, news: News, stalls_at: int = 0
    ) -> None:
        words = (stream, "workers", name, str(batch), str(RETRY_MS), str(stalls_at))
        self._name = name
        self._news = news
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headwater.cli.demo.member", *words],
            # Not among the arguments, which everybody on the machine can read.
            env={**os.environ, "HEADWATER_URL": url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C is for the demo alone; it ends its members.
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.wait()
        # Who listens comes to the end by itself; nobody may close what it reads from before.
        if self._listener.ident is not None:
            self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def get_ready(self) -> None:
        """Wait until the member is connected."""
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise HeadwaterError(
                f"member {self._name} of the demo did not start; see what it said above"
            )

    def go(self) -> None:
        """Let the member begin, and pass on what it tells."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._news.put((self._name, json.loads(line)))

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()


@dataclass
class Shift:
    """What two members did, of whom one was killed: each message done, and how often.

    ``held`` is what the killed one had in hand, ``again`` what was handed out a second time.
    """

    done: Counter[int] = field(default_factory=Counter)
    held: set[int] = field(default_factory=set)
    again: set[int] = field(default_factory=set)

    def take_in(self, told: dict[str, Any]) -> None:
        """Count what a member told."""
        self.done.update(told.get("done", ()))
        self.again |= {offset for offset, attempt in told.get("took", ()) if attempt == 2}


def work(url: str, stream: str, messages: int, batch: int, screen: DemoScreen) -> Shift:
    """Let two processes share the messages, kill one that has a batch in hand, see it through."""
    news: News = queue.Queue()
    shift = Shift()
    deadline = time.monotonic() + _PATIENCE_S
    with (
        Member(url, stream, "amy", batch, news) as amy,
        Member(url, stream, "bob", batch, news, LAST_BATCH) as bob,
    ):
        # They begin together, so that neither does all the work before the other is there.
        for member in (amy, bob):
            member.get_ready()
        for member in (amy, bob):
            member.go()
        batches_of_bob = 0
        while len(shift.done) < messages and time.monotonic() < deadline:
            try:
                who, told = news.get(timeout=1)
            except queue.Empty:
                continue
            shift.take_in(told)
            screen.progress(f"{len(shift.done)} done")
            batches_of_bob += who == "bob" and "took" in told
            if batches_of_bob == LAST_BATCH and not shift.held:
                bob.kill()
                shift.held = {offset for offset, _ in told["took"]}
                screen.note(
                    f"bob is killed with {len(shift.held)} messages in hand; "
                    f"they come again after {RETRY_MS} ms"
                )
    return shift
