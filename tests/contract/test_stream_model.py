"""A stream against a model of it: a dict of offsets, under any sequence of operations.

Writers of three kinds, producers that repeat themselves, eviction, compaction, sealing and
retention, in any order; every read must give what the dict gives.
"""

from __future__ import annotations

import secrets
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from headwater import Headwater, Message, ReusedSequence, StaleSequence
from tests.support.examples import MODEL_SETTINGS, everywhere, patient
from tests.support.scrubbed import assert_sound

SIZES = st.sampled_from([1, 2, 3, 8, 9, 30, 130, 499, 500, 501, 1000, 1001, 1300])
TAGS = st.sampled_from([1, 2, 7, 100, 5000])
PLACES = st.floats(0, 1.1)
EVERY = st.sampled_from([0, 0, 1, 7])
REMEMBERED = 128
Row: TypeAlias = "tuple[str, bytes] | tuple[str, bytes, dict[str, bytes]]"


class StreamMachine(RuleBasedStateMachine):
    client: ClassVar[Headwater]

    def __init__(self) -> None:
        super().__init__()
        name = f"model-{secrets.token_hex(6)}"
        self.writer = self.client.stream(name)
        # Reads go through another handle, which holds on to nodes that others replace.
        self.reader = self.client.stream(name)
        self.rows: dict[int, Message] = {}
        self.first, self.last, self.newest = 1, 0, 0
        self.answers: dict[str, dict[int, range]] = {"p": {}, "q": {}}
        self.sent: dict[tuple[str, int], list[Row]] = {}
        self.readers: dict[str, int] = {}
        self.count = 0

    def teardown(self) -> None:
        assert_sound(self.client, self.writer.name)
        self.writer.delete()

    def make(self, size: int, tags: int, markers: bool, every: int = 0) -> list[Row]:
        """Make rows; each of so many has headers, the others have none (0: not one has any)."""
        self.count += 1
        rows: list[Row] = [
            (f"t{i * 31 % tags}", b"" if markers and i % 3 == 0 else b"%d.%d" % (self.count, i))
            for i in range(size)
        ]
        headers = {"n": b"%d" % self.count, "empty": b""}
        return [
            (*row[:2], headers) if every and i % every == 0 else row for i, row in enumerate(rows)
        ]

    def took(self, rows: list[Row], at: range, times: list[int] | None = None) -> None:
        """Enter what was written; the server's times are taken over from the first read."""
        assert at == range(self.last + 1, self.last + len(rows) + 1)
        found = self.reader.read(at.start, len(rows))
        for place, (row, message) in enumerate(zip(rows, found, strict=True)):
            assert message is not None
            assert (message.offset, message.tag, message.value) == (at[place], *row[:2])
            assert message.headers == (row[2] if len(row) == 3 else {})
            if times is not None:
                assert message.time_ms == times[place]
            self.rows[message.offset] = message
            self.newest = max(self.newest, message.time_ms)
        self.last = at.stop - 1

    def offset(self, place: float) -> int:
        return max(1, round(self.first + place * (self.last - self.first)))

    def forget(self, limit: int) -> int:
        gone = [offset for offset in self.rows if offset <= limit]
        for offset in gone:
            del self.rows[offset]
        self.first = max(self.first, limit + 1)
        return len(gone)

    @initialize(sizes=st.lists(SIZES, min_size=1, max_size=4), tags=TAGS)
    def begin_with_some(self, sizes: list[int], tags: int) -> None:
        """Hypothesis leaves out some rules in every run; an empty stream proves little."""
        for size in sizes:
            self.write_many(size, tags, markers=False)

    @rule(tags=TAGS, marker=st.booleans(), every=EVERY)
    def write(self, tags: int, marker: bool, every: int) -> None:
        (row,) = self.make(1, tags, marker, every)
        tag, value, *more = row
        offset = self.writer.write(tag, value, headers=more[0] if more else None)
        self.took([row], range(offset, offset + 1))

    @rule(size=SIZES, tags=TAGS, markers=st.booleans(), every=EVERY)
    def write_many(self, size: int, tags: int, markers: bool, every: int = 0) -> None:
        rows = self.make(size, tags, markers, every)
        self.took(rows, self.writer.write_many(rows))

    @rule(size=SIZES, tags=TAGS, seed=st.integers(0, 10**6), every=EVERY)
    def append_with_times(self, size: int, tags: int, seed: int, every: int) -> None:
        rows = self.make(size, tags, markers=True, every=every)
        times = [10**12 + seed * (i * 7 % 11) for i in range(size)]
        columns: dict[str, Any] = {
            "tag": [row[0] for row in rows], "value": [row[1] for row in rows], "time": times
        }  # fmt: skip
        if every:
            maps = [list(row[2].items()) if len(row) == 3 else None for row in rows]
            columns["headers"] = pa.array(maps, pa.map_(pa.string(), pa.binary()))
        self.took(rows, self.writer.append(pa.table(columns)), times)

    @rule(size=SIZES, keep=st.integers(0, 40))
    def write_with_backlog(self, size: int, keep: int) -> None:
        before = len(self.rows)
        rows = self.make(size, 7, markers=False)
        at = self.writer.write_many(rows, backlog=keep)
        assert at == range(self.last + 1, self.last + size + 1)
        info = self.reader.info()
        for offset, message in zip(at, self.reader.read(at.start, size), strict=True):
            assert message is not None or offset < info.first
            self.rows[offset] = message or Message(offset, "", b"", 0)
        self.last = at.stop - 1
        self.newest = info.last_time_ms
        self.kept_at_least(keep, before + size, info.first)

    def kept_at_least(self, keep: int, before: int, first: int) -> None:
        """Check that what went is the oldest, that enough stayed, and that no reader was passed."""
        gone = self.forget(first - 1)
        assert before - gone >= min(keep, before)
        if first > 1 and gone:
            assert all(first <= position for position in self.readers.values())
        if not self.readers and self.is_dense():
            assert before - gone <= max(keep, 0)

    def is_dense(self) -> bool:
        return len(self.rows) == self.last - self.first + 1

    @rule(
        producer=st.sampled_from("pq"),
        step=st.sampled_from([1, 1, 1, 2, 50]),
        size=SIZES,
        every=EVERY,
    )
    def produce(self, producer: str, step: int, size: int, every: int) -> None:
        answers = self.answers[producer]
        sequence = max(answers, default=0) + step
        rows = self.make(size, 7, markers=False, every=every)
        at = self.writer.write_many(rows, producer=producer, sequence=sequence)
        self.took(rows, at)
        answers[sequence] = at
        self.sent[producer, sequence] = rows

    @rule(producer=st.sampled_from("pq"), back=st.integers(0, 200))
    def repeat(self, producer: str, back: int) -> None:
        answers = self.answers[producer]
        if not answers:
            return
        sequence = max(answers) - back
        if sequence < 0:
            return
        rows = self.make(3, 3, markers=False)
        if sequence in answers and back < REMEMBERED:
            with pytest.raises(ReusedSequence):
                self.writer.write_many(rows, producer=producer, sequence=sequence)
            rows = self.sent[producer, sequence]
            at = self.writer.write_many(rows, producer=producer, sequence=sequence)
            assert at == answers[sequence]
        elif sequence not in answers:
            with pytest.raises(StaleSequence):
                self.writer.write_many(rows, producer=producer, sequence=sequence)

    @rule(place=PLACES)
    def evict_up_to(self, place: float) -> None:
        limit = self.offset(place)
        assert self.writer.evict(0) == 0
        assert self.writer.evict(limit) == self.forget(min(limit, self.last))

    @rule(keep=st.integers(1, 2000))
    def evict_all_but(self, keep: int) -> None:
        before, dense = len(self.rows), self.is_dense()
        gone = self.writer.evict(-keep)
        assert gone == self.forget(self.reader.info().first - 1)
        assert len(self.rows) >= min(keep, before)
        if dense:
            assert len(self.rows) == min(keep, before)

    @rule(keep=st.integers(0, 2000), force=st.booleans())
    def retain(self, keep: int, force: bool) -> None:
        before, dense = len(self.rows), self.is_dense()
        done = self.writer.retain(max_count=keep, force=force)
        first = self.reader.info().first
        assert done.evicted == self.forget(first - 1)
        assert len(self.rows) >= min(keep, before)
        if done.evicted and not force:
            assert all(first <= position for position in self.readers.values())
        if dense and (force or not self.readers):
            assert len(self.rows) == min(keep, before)
            assert (done.held, done.held_by) == (0, None)
        if done.held:
            assert done.held_by == min(self.readers, key=lambda r: (self.readers[r], r))
        self.writer.retain()

    @rule()
    def seal(self) -> None:
        self.writer.seal()
        assert self.writer.seal() == 0
        assert self.reader.info().sealed == self.last

    @rule(marker_ms=st.sampled_from([0, 1000, 10**11]))
    def compact(self, marker_ms: int) -> None:
        floor = min(self.readers.values(), default=self.last + 1)
        newest_of = {self.rows[offset].tag: offset for offset in sorted(self.rows)}
        kept = {
            offset: self.rows[offset]
            for offset in newest_of.values()
            if self.rows[offset].value
            or self.rows[offset].time_ms > self.newest - marker_ms
            or offset >= floor
        }
        assert self.writer.compact(marker_ms=marker_ms) == len(self.rows) - len(kept)
        self.rows = kept
        assert self.writer.compact(marker_ms=marker_ms) == 0

    @rule(name=st.sampled_from("ab"), place=PLACES)
    def register_reader(self, name: str, place: float) -> None:
        self.readers[name] = self.offset(place)
        self.writer.register_reader(name, self.readers[name])

    @rule(name=st.sampled_from("ab"))
    def forget_reader(self, name: str) -> None:
        self.readers.pop(name, None)
        self.writer.forget_reader(name)

    @rule(place=PLACES, count=st.sampled_from([0, 1, 10, 700, 10_000]))
    def read(self, place: float, count: int) -> None:
        start = self.offset(place)
        expected = [self.rows.get(o) for o in range(start, min(start + count, self.last + 1))]
        assert self.reader.read(start, count) == expected

    @rule(start=PLACES, length=PLACES, headers=st.booleans())
    def scan(self, start: float, length: float, headers: bool) -> None:
        low = self.offset(start)
        high = low + round(length * (self.last - self.first + 1))
        rows: list[dict[str, Any]] = [
            row
            for batch in self.reader.scan(low, high or None, headers=headers)
            for row in batch.to_pylist()
        ]
        found = [
            (
                row["offset"],
                row["tag"],
                row["value"],
                round(row["time"].timestamp() * 1000),
                dict(row.get("headers", {})),
            )
            for row in rows
        ]
        expected = [
            (m.offset, m.tag, m.value, m.time_ms, dict(m.headers) if headers else {})
            for _, m in sorted(self.rows.items())
            if low <= m.offset < high
        ]
        assert found == expected

    @rule(place=st.floats(0, 1), shift=st.sampled_from([-1, 0, 1]))
    def find_a_time(self, place: float, shift: int) -> None:
        times = sorted({m.time_ms for m in self.rows.values()}) or [0]
        time = max(times[round(place * (len(times) - 1))] + shift, 0)
        later = [m.offset for m in self.rows.values() if m.time_ms >= time]
        assert self.reader.offset_at(time) == min(later, default=self.last + 1)

    @invariant()
    def info_tells_the_truth(self) -> None:
        info = self.reader.info()
        assert (info.last, info.length) == (self.last, len(self.rows))
        assert info.first == self.first
        assert info.readers == self.readers
        assert info.sealed <= info.last
        assert info.last_time_ms == self.newest


@patient
@everywhere
def test_a_stream_is_a_dict_of_offsets(client: Headwater) -> None:
    StreamMachine.client = client
    run_state_machine_as_test(StreamMachine, settings=MODEL_SETTINGS)
