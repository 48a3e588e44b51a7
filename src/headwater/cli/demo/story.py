"""What the demo shows: writers and members that are killed, on a screen that counts every message.

Nothing is simulated: members are processes, killed by SIGKILL in the middle of their work, and so
is the server.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from headwater.cli import output
from headwater.client import Headwater, connect
from headwater.errors import HeadwaterError
from headwater.log.stream import Stream
from headwater.store import embedded


class Claim(NamedTuple):
    """Something that was claimed: what was expected then, and what was found."""

    what: str
    expected: object
    found: object

    @property
    def true(self) -> bool:
        """Whether the claim was true."""
        return self.expected == self.found


class DemoScreen:
    """Shows one step after the other."""

    def __init__(self) -> None:
        self._console = output.console()
        self._past: list[Text] = []
        self._spinner: Spinner | None = None
        self._title = ""

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show what happens within."""
        if not self._console.is_terminal:
            yield
            return
        with Live(get_renderable=self._picture, console=self._console, refresh_per_second=12):
            yield

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Show a step from its beginning to its end."""
        began = time.monotonic()
        self._title, self._spinner = title, Spinner("dots", title)
        yield
        self._spinner = None
        took = (f"{time.monotonic() - began:5.2f} s  ", "dim")
        self._say(Text.assemble(took, (title, "bold")))

    def note(self, text: str) -> None:
        """Show a line within a step."""
        self._say(Text(f"         {text}"))

    def progress(self, text: str) -> None:
        """Show the progress of the step, while it lasts, on a terminal only."""
        if self._spinner is not None:
            self._spinner.update(text=f"{self._title}: {text}")

    def claims(self, claims: list[Claim]) -> None:
        """Show what was claimed, and whether it was true."""
        output.show_table(
            ["true", "claim", "expected", "found"],
            [("yes" if c.true else "NO", c.what, c.expected, c.found) for c in claims],
            styles={"yes": "green", "NO": "bold red"},
            fold=3,
        )

    def _say(self, line: Text) -> None:
        if self._console.is_terminal:
            self._past.append(line)
        else:
            self._console.print(line)

    def _picture(self) -> RenderableType:
        return Group(*self._past, *([self._spinner] if self._spinner else []))


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


BATCH = 1000
# Around the kill of the server: how many batches are acknowledged before and after it.
BEFORE, AFTER = 20, 20


class Story:
    """One run of the demo, on one store."""

    def __init__(self, url: str, directory: Path | None, messages: int, screen: DemoScreen) -> None:
        self._url = url
        self._directory = directory
        self._messages = messages
        self._screen = screen
        self._name = f"demo-{secrets.token_hex(4)}"
        self.claims: list[Claim] = []

    def run(self) -> None:
        """Do all of it, and collect the claims."""
        with connect(self._url, wait_ms=0) as hw:
            stream = hw.stream(self._name)
            try:
                self._write(stream)
                self._read(stream)
                self._share(stream)
                self._replay(stream)
                if self._directory is None:
                    self._screen.note("the server is not ours to kill: that step is left out")
                else:
                    self._lose_server(hw, self._directory)
                self._look_after(hw)
            finally:
                if self._directory is None:
                    stream.delete()

    def _claim(self, what: str, expected: object, found: object) -> None:
        self.claims.append(Claim(what, expected, found))

    def _entry(self, number: int) -> tuple[str, bytes]:
        event = {"ride": number, "city": f"city-{number % 7}", "cents": number * 37 % 5000}
        return f"ride-{number % 500}", json.dumps(event).encode()

    def _write(self, stream: Stream) -> None:
        given: list[int] = []
        with self._screen.step(f"write {self._messages} messages in batches of {BATCH}"):
            for start in range(1, self._messages + 1, BATCH):
                numbers = range(start, min(start + BATCH, self._messages + 1))
                given += stream.write_many(self._entry(number) for number in numbers)
                self._screen.progress(f"{len(given)}")
        dense = given == list(range(1, self._messages + 1))
        self._claim(
            "written, at offsets without a hole", self._messages, len(given) if dense else 0
        )

    def _read(self, stream: Stream) -> None:
        equal = 0
        with self._screen.step("read them back by offset, and ten back from the end by arithmetic"):
            for start in range(1, self._messages + 1, BATCH):
                page = stream.read(start, BATCH)
                equal += sum(
                    message is not None
                    and message.offset == number
                    and (message.tag, message.value) == self._entry(number)
                    for number, message in enumerate(page, start)
                )
            last = stream.info().last
            (back,) = stream.read(last - 10, 1)
        self._claim("read back, equal and in order", self._messages, equal)
        self._claim(
            "message ten back from the last", last - 10, back and json.loads(back.value)["ride"]
        )

    def _share(self, stream: Stream) -> None:
        batch = max(1, self._messages // 100)
        stream.group("workers").read(0)  # makes the group, whether or not a member gets to read
        with self._screen.step("share them between two processes; kill -9 one of them in mid-work"):
            shift = work(self._url, self._name, self._messages, batch, self._screen)
        self._claim("handled by the group", self._messages, len(shift.done))
        self._claim("handled twice", 0, sum(count > 1 for count in shift.done.values()))
        self._claim("held by the killed process", batch, len(shift.held))
        self._claim("of those, redelivered", len(shift.held), len(shift.held & shift.redelivered))
        facts = stream.group("workers").info()
        self._claim("still pending, still to come", (0, 0), (facts.pending, facts.lag))

    def _replay(self, stream: Stream) -> None:
        found, cents = 0, 0
        with self._screen.step("replay all of it with a new group, from the start"):
            group = stream.group("replay", start="first")
            while taken := group.read(BATCH):
                found += len(taken)
                cents += sum(json.loads(message.value)["cents"] for message in taken)
        numbers = range(1, self._messages + 1)
        self._claim("replayed by a new group", self._messages, found)
        self._claim("their total", sum(n * 37 % 5000 for n in numbers), cents)

    def _lose_server(self, hw: Headwater, directory: Path) -> None:
        acknowledged: dict[int, bytes] = {}
        enough = threading.Event()
        killed = threading.Event()
        faults: list[HeadwaterError] = []

        def write() -> None:
            left, sequence = AFTER, 0
            stream = hw.stream(self._name)
            try:
                while left:
                    sequence += 1
                    values = [b"%d:%d" % (sequence, n) for n in range(100)]
                    offsets = stream.write_many(
                        [("crash", value) for value in values], producer="demo", sequence=sequence
                    )
                    acknowledged.update(zip(offsets, values, strict=True))
                    if sequence >= BEFORE:
                        enough.set()
                    left -= killed.is_set()
            except HeadwaterError as error:
                faults.append(error)
                enough.set()

        with self._screen.step("kill -9 the server while a writer writes, and continue"):
            position = hw.stream(self._name).group("workers").info().ack_offset
            writer = threading.Thread(target=write)
            writer.start()
            enough.wait()
            pid = embedded.status(directory).pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            killed.set()
            writer.join()
            successor = embedded.status(directory).pid
            self._screen.note(f"server {pid} was killed; server {successor} took over its data")
        if faults:
            raise faults[0]
        stream = hw.stream(self._name)
        page = stream.read(self._messages + 1, len(acknowledged) + BATCH)
        found = {message.offset: message.value for message in page if message is not None}
        self._claim("the server that was killed is another one now", True, successor != pid)
        self._claim("acknowledged around the kill, and there", len(acknowledged), len(found))
        self._claim("each at its offset, with its value", True, found == acknowledged)
        self._claim("there twice", 0, len(found) - len(set(found.values())))
        self._claim(
            "where the group stood before and after",
            position,
            stream.group("workers").info().ack_offset,
        )
        total, last = stream.info().length, stream.info().last
        self._claim("all messages of the stream", last, total)

    def _look_after(self, hw: Headwater) -> None:
        with self._screen.step("keep the last message of each tag, offsets unchanged"):
            stream = hw.stream(self._name)
            before = stream.info()
            tags = {message.tag for message in stream.read(1, before.last) if message}
            stream.compact()
            after = stream.info()
        self._claim("messages left after compaction: one a tag", len(tags), after.length)
        self._claim("the last offset, before and after", before.last, after.last)
