"""A streaming query without the JVM: calls a reader as Spark does, and keeps what Spark keeps.

Readers travel as pickles and positions as JSON, planner and tasks have copies of their own, and a
micro-batch that was planned before a crash is read again afterwards, from start to end as noted.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit

from headwater.spark.log.source import HeadwaterSource
from headwater.spark.log.stream_reader import StreamReader


class Engine:
    """One query: its options, its checkpoint (``planned``, ``done``) and the rows it has taken."""

    def __init__(self, **options: object) -> None:
        self.options = {name: str(value) for name, value in options.items()}
        self.rows: list[tuple[int, int, str, bytes]] = []
        self.done: str | None = None
        self.planned: tuple[str, str] | None = None
        self.reader = self.restart()

    def restart(self, **options: object) -> StreamReader:
        """Begin anew with what the checkpoint holds, as after a crash of the driver."""
        self.options |= {name: str(value) for name, value in options.items()}
        source = pickle.loads(pickle.dumps(HeadwaterSource(self.options)))
        reader = source.streamReader(source.schema())
        if not isinstance(reader, StreamReader):
            # It is refused: Spark learns why by its first question.
            reader.initialOffset()
        assert isinstance(reader, StreamReader)
        self.reader = reader
        return reader

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Note what the next micro-batch reads; False when there is nothing new."""
        if self.done is None:
            self.done = json.dumps(self.reader.initialOffset())
        limit = limit or self.reader.getDefaultReadLimit()
        end = json.dumps(self.reader.latestOffset(json.loads(self.done), limit))
        self.planned = None if end == self.done else (self.done, end)
        return self.planned is not None

    def read(self) -> list[Any]:
        """Run the tasks of the noted micro-batch, and give their rows; nothing is taken yet."""
        assert self.planned is not None
        start, end = self.planned
        found = []
        for part in self.reader.partitions(json.loads(start), json.loads(end)):
            worker: StreamReader = pickle.loads(pickle.dumps(self.reader))
            for batch in worker.read(pickle.loads(pickle.dumps(part))):
                columns = (batch.column(name).to_pylist() for name in FACTS)
                found += list(zip(*columns, strict=True))
        return found

    def finish(self) -> int:
        """Read and take the noted micro-batch, and commit it; returns how many rows it had."""
        assert self.planned is not None
        rows = self.read()
        self.rows += rows
        self.done, self.planned = self.planned[1], None
        self.reader.commit(json.loads(self.done))
        return len(rows)

    def run(self) -> list[int]:
        """Read on until nothing is new; returns the rows of each micro-batch."""
        sizes = [self.finish()] if self.planned else []
        while self.plan():
            sizes.append(self.finish())
        return sizes


FACTS = ("partition", "offset", "tag", "value")
