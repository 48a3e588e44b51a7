"""Processes that use the log while things are killed: each notes what it does before and after.

A note is one line of a file that only its worker appends to. It is given to the system before the
call that it announces, so that it outlives a kill -9 of the worker. A worker that is started again
continues from its own notes.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import redis

import headwater
from headwater.check.history import (
    AckBegun,
    AckDone,
    HistoryEvent,
    ReadBegun,
    ReadDone,
    ReturnBegun,
    WriteBegun,
    WriteDone,
)
from headwater.errors import StoreError

STREAM = "verify"
RETRYING = "retrying"
ONCE = "once"

Style = Literal["one", "many", "numbered"]


def now_ms() -> float:
    """Read the clock that all processes of this machine share."""
    return time.monotonic() * 1000


class Notes:
    """The events of one worker, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a+b", buffering=0)
        if size := self._file.seek(0, os.SEEK_END):
            self._file.seek(size - 1)
            if self._file.read(1) != b"\n":
                # The process before this one was killed in the middle of a line.
                self._file.write(b"\n")

    def note(self, event: HistoryEvent) -> None:
        """Write an event down; it stays when this process is killed."""
        self._file.write(msgspec.json.encode(event) + b"\n")

    def events(self) -> list[HistoryEvent]:
        """Return all events so far."""
        return noted(self._path)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def noted(path: Path) -> list[HistoryEvent]:
    """Return all events of a file of notes; a line that a kill cut off counts as not written."""
    events = []
    for line in path.read_bytes().split(b"\n"):
        with suppress(msgspec.DecodeError):
            events.append(msgspec.json.decode(line, type=HistoryEvent))
    return events


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker has to do, and until when."""

    name: str
    life: int
    url: str
    notes: Path
    seed: int
    until_ms: float
    ack_ms: int

    def chance(self) -> random.Random:
        """Return random numbers that are the same in each run of this life."""
        return random.Random(f"{self.seed} {self.name} {self.life}")

    def calls(self) -> Iterator[str]:
        """Yield a new name for each call until the time is up."""
        number = 0
        while now_ms() < self.until_ms:
            number += 1
            yield f"{self.name}.{self.life}.{number}"


def write(job: Job, style: Style) -> None:
    """Write until time is up: single messages, batches, or batches with a sequence."""
    notes, chance = Notes(job.notes), job.chance()
    acked = sum(isinstance(event, WriteDone) for event in notes.events())
    with headwater.connect(job.url) as hw:
        stream = hw.stream(STREAM)
        for call in job.calls():
            sequence = acked + 1
            if style == "numbered":
                # The same batch until it is acknowledged, in this life or another.
                size = _size(random.Random(f"{job.seed} {job.name} {sequence}"))
                values = [f"{job.name}#{sequence}.{place}" for place in range(size)]
            else:
                size = 1 if style == "one" else _size(chance)
                values = [f"{call}.{place}" for place in range(size)]
            notes.note(WriteBegun(call, now_ms(), values))
            try:
                offsets = _write(stream, style, values, job.name, sequence)
            except StoreError:
                continue
            notes.note(WriteDone(call, now_ms(), offsets.start, offsets.stop - 1))
            acked += 1
            # Many moments to be killed in matter more than many messages.
            time.sleep(chance.random() * 0.02)


def _size(chance: random.Random) -> int:
    """Return the size of a batch: plain, packed, and sometimes a whole node."""
    return chance.randint(1, chance.choice([1, 8, 50, 1200]))


def _write(
    stream: headwater.Stream, style: Style, values: list[str], producer: str, sequence: int
) -> range:
    if style == "one":
        offset = stream.write(values[0], values[0])
        return range(offset, offset + 1)
    entries = [(value, value) for value in values]
    if style == "many":
        return stream.write_many(entries)
    return stream.write_many(entries, producer=producer, sequence=sequence)


def take(job: Job, retrying: bool) -> None:
    """Read through a group until time is up; with retry, acknowledge most of it."""
    notes, chance = Notes(job.notes), job.chance()
    with headwater.connect(job.url) as hw:
        group = hw.stream(STREAM).group(RETRYING if retrying else ONCE, member=job.name)
        for call in job.calls():
            try:
                offsets = take_once(job, group, notes, call, chance)
                if offsets and retrying:
                    settle(group, notes, call, offsets, chance.random())
            except StoreError:
                continue


def take_once(
    job: Job, group: headwater.Group, notes: Notes, call: str, chance: random.Random
) -> list[int]:
    """Read once, and return the offsets that were delivered."""
    ack_ms = job.ack_ms if group.name == RETRYING else None
    notes.note(ReadBegun(call, now_ms(), group.name, ack_ms))
    messages = group.read(
        chance.randint(1, 300), block_ms=chance.choice([0, 50, 400]), ack_ms=ack_ms
    )
    if messages:
        facts = [(m.offset, m.value.decode(), m.attempt) for m in messages]
        notes.note(ReadDone(call, now_ms(), facts))
    return [message.offset for message in messages]


def settle(
    group: headwater.Group, notes: Notes, call: str, offsets: list[int], luck: float
) -> None:
    """Acknowledge what was read; but sometimes drop it, or nack it."""
    if luck < 0.05:
        return
    if luck < 0.1:
        notes.note(ReturnBegun(call, now_ms(), group.name, offsets))
        group.nack(*offsets)
        return
    notes.note(AckBegun(call, now_ms(), group.name, offsets))
    group.ack(*offsets)
    notes.note(AckDone(call, now_ms()))


def keep_house(job: Job) -> None:
    """Seal, tidy and rewrite all the time, as any number of housekeepers may."""
    chance = job.chance()
    with headwater.connect(job.url) as hw:
        stream = hw.stream(STREAM)
        for _ in job.calls():
            try:
                luck = chance.random()
                if luck < 0.05:
                    # The server then rewrites its whole file, and may be killed at that.
                    hw.store.command("BGREWRITEAOF")
                elif luck < 0.5:
                    stream.seal()
                else:
                    hw.keep(STREAM)
            except (StoreError, redis.RedisError):
                continue
            time.sleep(0.02)


def roles(writers: int, members: int) -> dict[str, Callable[[Job], None]]:
    """Return the workers by name: every style of writing, both kinds of group, a housekeeper."""
    styles: tuple[Style, ...] = ("numbered", "many", "one")
    found: dict[str, Callable[[Job], None]] = {"keeper": keep_house}
    for place in range(writers):
        style = styles[place % len(styles)]
        found[f"writer-{place}"] = lambda job, style=style: write(job, style)  # type: ignore[misc]
    for place in range(members):
        retrying = place % 3 != 2
        found[f"member-{place}"] = lambda job, on=retrying: take(job, on)  # type: ignore[misc]
    return found
