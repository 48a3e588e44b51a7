"""Staging and publishing against a model: lists of rows, whoever stops or repeats anywhere.

Producers stage, publish, stop after any call of a publish, come back with the same or with other
stagings, or with the next sequence; others write, evict and seal meanwhile, and housekeepers finish
what was left. The stream must be what the lists say, after every call.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from headwater import Headwater, Published, StagingGone
from headwater.log import node, retention, writing
from headwater.log.handles import StreamHandle
from headwater.store.call import Call, Operation
from tests.support.examples import MODEL_SETTINGS, patient
from tests.support.scrubbed import assert_streams_sound

SIZES = st.sampled_from([1, 2, 9, 40, 150, 300])
PRODUCERS = st.sampled_from("pq")
NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f"])
CHOICES = st.lists(NAMES, max_size=3, unique=True)


class Open:
    """A publish that has begun: what is still to come, and where it lies so far."""

    def __init__(self, sequence: int, rows: list[bytes]) -> None:
        self.sequence = sequence
        self.rest = rows
        self.at: Published | None = None


class StagingMachine(RuleBasedStateMachine):
    client: ClassVar[Headwater]

    def __init__(self) -> None:
        super().__init__()
        self.stream = self.client.stream(f"model-{secrets.token_hex(6)}")
        self.staged: dict[str, list[bytes]] = {}
        self.places: dict[str, int] = {}
        self.used: dict[str, int] = {}
        self.log: list[bytes] = []
        self.first = 1
        self.open: dict[str, Open] = {}
        self.done: dict[str, dict[int, Published]] = {"p": {}, "q": {}}
        self.count = 0

    def teardown(self) -> None:
        assert_streams_sound(self.client, self.stream.name)
        self.stream.delete()
        self.stream.unstage(*self.staged_as("abcdef"))

    def make(self, size: int) -> list[bytes]:
        self.count += 1
        return [b"%d.%d" % (self.count, i) for i in range(size)]

    def staged_as(self, names: Iterable[str]) -> list[str]:
        """Spell names as they are sent: none is used again after it was published or dropped."""
        return [f"{name}{self.used.get(name, 0)}" for name in names]

    # ── Staging ──────────────────────────────────────────────────────────────────────────────

    @rule(name=NAMES, size=SIZES, twice=st.booleans())
    def stage(self, name: str, size: int, twice: bool) -> None:
        rows = self.make(size)
        batch = pa.table({"tag": ["t"] * size, "value": rows})
        place = self.places.get(name, 0)
        for _ in range(1 + twice):
            self.places[name] = self.stream.stage(batch, *self.staged_as([name]), place=place)
        self.staged.setdefault(name, []).extend(rows)

    @rule(names=CHOICES)
    def unstage(self, names: list[str]) -> None:
        assert self.stream.unstage(*self.staged_as(names)) == len(self.staged.keys() & set(names))
        self.drop(names)

    def drop(self, names: list[str]) -> None:
        for name in names:
            self.staged.pop(name, None)
            self.places.pop(name, None)
            self.used[name] = self.used.get(name, 0) + 1

    # ── Publishing ───────────────────────────────────────────────────────────────────────────

    @rule(producer=PRODUCERS, names=CHOICES, step=st.sampled_from([0, 0, 1, 1, 1, 3]))
    def publish(self, producer: str, names: list[str], step: int) -> None:
        """To the end, with the sequence under way, the last one, or a new one."""
        sequence = self.sequence(producer, step)
        if self.refused(producer, names, sequence):
            return
        before = self.done[producer].get(sequence)
        at = self.stream.publish(*self.staged_as(names), producer=producer, sequence=sequence)
        if before is not None:
            assert at == before
            self.drop(names)
            return
        open_ = self.open.get(producer)
        if open_ is not None and open_.sequence == sequence:
            self.drop(names)
        elif open_ is not None:
            self.finish(producer)
            self.note(producer, names, sequence)
        else:
            self.note(producer, names, sequence)
        self.finish(producer)
        assert at == self.done[producer][sequence]

    @rule(
        producer=PRODUCERS, names=CHOICES, step=st.sampled_from([0, 1, 1]), calls=st.integers(1, 6)
    )
    def stop_in_a_publish(self, producer: str, names: list[str], step: int, calls: int) -> None:
        """Do so many calls of a publish, and never come back to it."""
        sequence = self.sequence(producer, step)
        known = sequence in self.done[producer]
        if known or self.refused(producer, names, sequence):
            return
        handle = StreamHandle(self.stream.name, set())
        operation = writing.publish(handle, self.staged_as(names), producer, sequence)
        for call, reply in self.driven(operation, calls):
            if call.function != "hw_stream_publish":
                continue
            open_ = self.open.get(producer)
            if open_ is None:
                self.note(producer, names, sequence)
            elif open_.sequence == sequence:
                self.drop(names)
            self.moved(producer)
            if reply[0] or (not reply[5] and not self.open[producer].rest):
                self.finish(producer)
        operation.close()

    def driven(self, operation: Operation[Published], calls: int) -> Iterator[tuple[Call, Any]]:
        def one(call: Call) -> Operation[Any]:
            return (yield call)

        reply = None
        for _ in range(calls):
            try:
                call = operation.send(reply)
            except StopIteration:
                return
            assert isinstance(call, Call)
            reply = self.client.store.run(one(call))
            yield call, reply

    def sequence(self, producer: str, step: int) -> int:
        newest = max(self.done[producer], default=0)
        open_ = self.open.get(producer)
        return max(newest, open_.sequence if open_ else 0) + step

    def refused(self, producer: str, names: list[str], sequence: int) -> bool:
        """Whether a new publish of these names cannot begin; checks that it does not."""
        open_ = self.open.get(producer)
        repeat = sequence in self.done[producer] or (open_ and open_.sequence == sequence)
        if repeat or self.staged.keys() >= set(names):
            return False
        with pytest.raises(StagingGone):
            self.stream.publish(*self.staged_as(names), producer=producer, sequence=sequence)
        if open_ is not None:
            self.finish(producer)
        return True

    def note(self, producer: str, names: list[str], sequence: int) -> None:
        rows = [row for name in names for row in self.staged[name]]
        self.open[producer] = Open(sequence, rows)
        self.drop(names)

    def moved(self, producer: str) -> None:
        """Enter what a call has moved: it must be the next rows of the publish, in order."""
        found = [m.value for m in self.stream.read(len(self.log) + 1, 100_000) if m]
        open_ = self.open[producer]
        assert found == open_.rest[: len(found)]
        if found:
            first = open_.at.first if open_.at else len(self.log) + 1
            self.log += found
            open_.rest = open_.rest[len(found) :]
            open_.at = Published(first, len(self.log))

    def finish(self, producer: str) -> None:
        open_ = self.open[producer]
        found = len(open_.rest)
        if found:
            first = open_.at.first if open_.at else len(self.log) + 1
            self.log += open_.rest
            open_.at = Published(first, len(self.log))
        at = open_.at or Published(len(self.log) + 1, len(self.log))
        self.done[producer][open_.sequence] = at
        del self.open[producer]

    # ── Others ───────────────────────────────────────────────────────────────────────────────

    @rule(size=SIZES)
    def write(self, size: int) -> None:
        rows = self.make(size)
        at = self.stream.write_many([("other", row) for row in rows])
        assert at.start == len(self.log) + 1
        self.log += rows

    @rule()
    def keep(self) -> None:
        handle = StreamHandle(self.stream.name, set())
        kept = self.client.store.run(retention.keep(handle, left_ms=0))
        assert kept.published == len(self.open)
        for producer in sorted(self.open, key=self.when_published):
            self.finish(producer)

    def when_published(self, producer: str) -> int:
        """Return where the rest of a publish came to lie, to enter several in their order."""
        rest = self.open[producer].rest
        if not rest:
            return 0
        found = [m.value for m in self.stream.read(len(self.log) + 1, 100_000) if m]
        return found.index(rest[0])

    @rule()
    def seal(self) -> None:
        self.stream.seal()

    @rule(keep=st.integers(1, 1000))
    def evict(self, keep: int) -> None:
        self.stream.evict(-keep)
        self.first = max(self.first, len(self.log) - keep + 1)

    @invariant()
    def the_stream_is_the_list(self) -> None:
        found = [m and m.value for m in self.stream.read(self.first, 100_000)]
        assert found == self.log[self.first - 1 :]


@patient
def test_publishing_is_joining_lists(client: Headwater, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "NODE_MESSAGES", 2)
    monkeypatch.setattr(writing, "_FIT_MESSAGES", 2)
    StagingMachine.client = client
    run_state_machine_as_test(
        StagingMachine, settings=settings(MODEL_SETTINGS, stateful_step_count=25)
    )
