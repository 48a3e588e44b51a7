"""Whatever is written, evicted, compacted and archived, and whatever dies: every row once.

A model keeps which offsets the log and the archive hold. Batch and streaming reads through the
archive must give exactly those, in order, and the table must name exactly what was lost.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import headwater
from headwater.errors import DataLost
from headwater.spark.archives import reading, writing
from headwater.spark.archives.table import Archive, Contents
from headwater.spark.log import range_reader
from tests.support.spark.archiving import (
    Row,
    one_by_one,
    read_batch,
    rows_of,
    run_archiver,
    stream_reader,
)

EXAMPLES = int(os.environ.get("HEADWATER_EXAMPLES", "12"))
DAY_MS = 24 * 3600 * 1000


class Crash(Exception):
    """The archiver dies here."""


class ArchiveMachine(RuleBasedStateMachine):
    """One stream, its archive, a batch reader, and a streaming query that starts again."""

    url: str
    places: Iterator[Path]

    @initialize()
    def begin(self) -> None:
        self.hw = headwater.connect(self.url)
        self.stream = self.hw.stream(f"s-{secrets.token_hex(6)}")
        self.place = str(next(self.places))
        self.rows: dict[int, Row] = {}
        self.in_log: set[int] = set()
        self.archived: set[int] = set()
        self.gaps: set[int] = set()
        self.first, self.covered = 1, 0
        self.query: Any = None
        self.position: Any = None

    def teardown(self) -> None:
        self.hw.close()

    @property
    def last(self) -> int:
        return len(self.rows)

    @property
    def options(self) -> dict[str, str]:
        return {"url": self.url, "stream": self.stream.name, "archive": self.place}

    def present(self) -> set[int]:
        return self.archived | {offset for offset in self.in_log if offset > self.covered}

    def lost(self) -> set[int]:
        return self.gaps | set(range(self.covered + 1, self.first))

    # ── What happens to a stream ──────────────────────────────────────────────────────────────

    @rule(count=st.sampled_from([1, 3, 30, 600]), tags=st.integers(1, 40))
    def write(self, count: int, tags: int) -> None:
        number = itertools.count(self.last + 1)
        entries = [(f"t{n % tags}", b"%d" % n) for n in itertools.islice(number, count)]
        self._wrote(self.stream.write_many(entries))

    @rule(days=st.lists(st.integers(0, 3), min_size=1, max_size=80))
    def write_with_times(self, days: list[int]) -> None:
        tags = [f"t{n % 5}" for n in range(len(days))]
        times = pa.array([day * DAY_MS for day in days], pa.timestamp("ms", "UTC"))
        values = [b"v"] * len(days)
        self._wrote(self.stream.append(pa.table({"tag": tags, "value": values, "time": times})))

    def _wrote(self, offsets: range) -> None:
        for message in self.stream.read(offsets.start, len(offsets)):
            assert message is not None
            row = Row(message.offset, message.tag, message.value, message.time_ms)
            self.rows[message.offset] = row
            self.in_log.add(message.offset)

    @precondition(lambda self: self.last)
    @rule(share=st.integers(0, 10))
    def evict_by_force(self, share: int) -> None:
        self._evict(self.last * share // 10, past_readers=True)

    @precondition(lambda self: self.last)
    @rule()
    def evict_what_nobody_needs(self) -> None:
        self._evict(self.last, past_readers=False)

    def _evict(self, limit: int, *, past_readers: bool) -> None:
        self.stream.evict(limit, past_readers=past_readers)
        self.first = self.stream.info().first
        assert self.first <= max(limit + 1, self.first)
        self.in_log = {offset for offset in self.in_log if offset >= self.first}

    @rule()
    def compact(self) -> None:
        self.stream.compact()
        newest = {self.rows[offset].tag: offset for offset in sorted(self.in_log)}
        self.in_log = set(newest.values())

    # ── The archiver ──────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.last)
    @rule(evict=st.booleans())
    def archive(self, evict: bool) -> None:
        archiver = run_archiver(self.url, self.stream.name, self.place, evict=evict)
        self._archived(archiver.streams[0].contents.last)
        assert self.covered == self.last
        if evict:
            self.first = self.stream.info().first
            self.in_log = {offset for offset in self.in_log if offset >= self.first}

    @precondition(lambda self: self.last)
    @rule(step=st.sampled_from(["task", "before commit", "after commit"]), tasks=st.integers(0, 3))
    def crash(self, step: str, tasks: int) -> None:
        left = itertools.count(tasks, -1)

        def dying(work: Any, parts: Any) -> Any:
            def some(part: Any) -> Any:
                if step == "task" and next(left) <= 0:
                    raise Crash
                return work(part)

            return one_by_one(some, parts)

        commit = Archive.commit

        def committing(*words: Any) -> Contents:
            if step == "before commit" and next(left) <= 0:
                raise Crash
            made = commit(*words)
            if step == "after commit" and next(left) <= 0:
                raise Crash
            return made

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Archive, "commit", committing)
            with contextlib.suppress(Crash):
                run_archiver(self.url, self.stream.name, self.place, dying)
        found = Archive(self.place, self.stream.name).load()
        self._archived(found.last if found else 0)

    def _archived(self, covered: int) -> None:
        if covered > self.covered:
            new = range(self.covered + 1, covered + 1)
            self.gaps |= set(range(new.start, min(self.first, new.stop)))
            self.archived |= {offset for offset in new if offset in self.in_log}
            self.covered = covered
        found = Archive(self.place, self.stream.name).load()
        told = {n for low, high in found.gaps for n in range(low, high + 1)} if found else set()
        assert told == self.gaps

    # ── Readers ───────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.last)
    @rule(least=st.integers(1, 5))
    def read(self, least: int) -> None:
        found = read_batch(**self.options, failOnDataLoss="false", minPartitions=str(least))
        assert found == [self.rows[offset] for offset in sorted(self.present())]

    @precondition(lambda self: self.last)
    @rule(span=st.tuples(st.integers(0, 10), st.integers(0, 10)))
    def read_a_range(self, span: tuple[int, int]) -> None:
        start, stop = (self.last * share // 10 + 1 for share in sorted(span))
        wanted = {"startingOffsets": str(start), "endingOffsets": str(stop)}
        if self.lost() & set(range(start, stop)):
            with pytest.raises(DataLost):
                read_batch(**self.options, **wanted)
        else:
            here = sorted(offset for offset in self.present() if start <= offset < stop)
            found = read_batch(**self.options, **wanted)
            assert found == [self.rows[offset] for offset in here]

    @precondition(lambda self: self.last)
    @rule(time=st.integers(0, 4))
    def read_from_a_time(self, time: int) -> None:
        since = time * DAY_MS
        late = [offset for offset in self.present() if self.rows[offset].time_ms >= since]
        start = min(late, default=self.last + 1)
        found = read_batch(**self.options, startingTimestamp=str(since), failOnDataLoss="false")
        here = sorted(offset for offset in self.present() if offset >= start)
        assert found == [self.rows[offset] for offset in here]

    @rule(most=st.sampled_from([None, 1, 50, 700]), restart=st.booleans())
    def read_on(self, most: int | None, restart: bool) -> None:
        if self.query is None or restart:
            self.query = stream_reader(**self.options, failOnDataLoss="false")
        if self.position is None:
            self.position = self.query.initialOffset()
        limit = ReadAllAvailable() if most is None else ReadMaxRows(most)
        end = self.query.latestOffset(self.position, limit)
        begin, stop = (place.get("0", {"next": 1})["next"] for place in (self.position, end))
        parts = self.query.partitions(self.position, end)
        found = [row for part in parts for row in rows_of(self.query.read(part))]
        here = sorted(offset for offset in self.present() if begin <= offset < stop)
        assert found == [self.rows[offset] for offset in here]
        self.position = end


def test_any_schedule_gives_every_row_once(
    embedded_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "TASK_NODES", 1)
    monkeypatch.setattr(writing, "PIECE_ROWS", 300)
    monkeypatch.setitem(reading._SETTINGS, "row_group_size", 70)
    ArchiveMachine.url = embedded_url
    ArchiveMachine.places = (tmp_path / str(n) for n in itertools.count())
    run_state_machine_as_test(
        ArchiveMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
