"""The demo's group at work: its members are processes, and what they did is counted."""

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
# The batch on which the member works when it is killed.
LAST_BATCH = 3
_PATIENCE_S = 60.0


class Member:
    """A process that takes batches of a group's messages; it is killed in the end."""

    def __init__(
        self, url: str, stream: str, name: str, batch: int, news: News, stalls_at: int = 0
    ) -> None:
        words = (stream, "workers", name, str(batch), str(RETRY_MS), str(stalls_at))
        self._name = name
        self._news = news
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headwater.cli.demo.member", *words],
            # Not an argument, which everybody on the machine can read.
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
        # The listener ends by itself; what it reads from must not be closed before.
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
                f"member {self._name} of the demo did not start; see its output above"
            )

    def go(self) -> None:
        """Let the member begin, and pass on its notes."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._news.put((self._name, json.loads(line)))

    def kill(self) -> None:
        """End the member as a crash would."""
        self._process.kill()


@dataclass
class Shift:
    """What two members did, of which one was killed: each message done, and how often.

    ``held`` is what the killed member was working on, ``redelivered`` what was delivered twice.
    """

    done: Counter[int] = field(default_factory=Counter)
    held: set[int] = field(default_factory=set)
    redelivered: set[int] = field(default_factory=set)

    def count(self, note: dict[str, Any]) -> None:
        """Count what a member notes."""
        self.done.update(note.get("done", ()))
        self.redelivered |= {offset for offset, attempt in note.get("took", ()) if attempt == 2}


def work(url: str, stream: str, messages: int, batch: int, screen: DemoScreen) -> Shift:
    """Let two processes share the messages, kill one in the middle of a batch, await the rest."""
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
                who, note = news.get(timeout=1)
            except queue.Empty:
                continue
            shift.count(note)
            screen.progress(f"{len(shift.done)} done")
            batches_of_bob += who == "bob" and "took" in note
            if batches_of_bob == LAST_BATCH and not shift.held:
                bob.kill()
                shift.held = {offset for offset, _ in note["took"]}
                screen.note(
                    f"bob is killed with {len(shift.held)} messages in hand; "
                    f"they are redelivered after {RETRY_MS} ms"
                )
    return shift
