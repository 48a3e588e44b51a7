"""What the demo does: write, read, share, lose a member, retry, replay, lose the server.

Nothing is simulated: members are processes, killed by SIGKILL in the middle of their work, and so
is the server.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
from pathlib import Path

from headwater.cli.demo import crew
from headwater.cli.demo.screen import Claim, DemoScreen
from headwater.client import Headwater, connect
from headwater.errors import HeadwaterError
from headwater.log.stream import Stream
from headwater.store import embedded

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
            shift = crew.work(self._url, self._name, self._messages, batch, self._screen)
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
