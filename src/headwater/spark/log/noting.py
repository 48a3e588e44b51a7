"""How a query notes itself in the store that it reads or writes; see ``queries/notes.py``.

Nothing depends on the notes, so a query does not fail because of one.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyspark import TaskContext

from headwater.errors import HeadwaterError
from headwater.spark.engine.writes import SparkWrite
from headwater.spark.log.target import StreamOrTopic
from headwater.spark.queries.notes import NotedQuery, Part, all_notes, note

_BEAT_S = 10.0
# What follows the name of a query in the words that Spark shows of its jobs, to tasks as HTML.
_BEHIND_NAME = re.compile("(?:<br/>|\n)id = ")
# What the totals job adds to the name of its query, which Spark wants to be another in each run.
_RUN_OF_JOB = re.compile(r"^(totals .+) [0-9a-f]{8}$", re.DOTALL)
# Under this name our Java puts the query beside the positions of a micro-batch.
_ASKING = "asking"

logger = logging.getLogger("headwater.spark")


@dataclass(frozen=True)
class AskingQuery:
    """The query that a micro-batch belongs to; ``about`` is what Spark shows of its jobs."""

    query: str
    batch: str
    about: str

    @classmethod
    def of_task(cls) -> AskingQuery | None:
        """Return the query that this task belongs to; None outside of a streaming query."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        if context is None or not query:
            return None
        batch = context.getLocalProperty("streaming.sql.batchId") or "0"
        return cls(query, batch, context.getLocalProperty("spark.job.description") or "")

    @classmethod
    def taken_from(cls, end: dict[str, Any]) -> AskingQuery | None:
        """Take from the end of a micro-batch which query asks for the plan.

        Our Java adds it (``jvm/StreamColumns.java``); None in a session without it.
        """
        told = end.pop(_ASKING, None)
        return None if told is None else cls(told["query"], told["batch"], told["about"] or "")


@dataclass(frozen=True)
class ReadNote:
    """What is noted of a micro-batch: by its first task, or by the reader that planned it."""

    run: str
    next: dict[str, int]
    end: dict[str, int]
    checkpoint: str

    def write(self, target: StreamOrTopic, asking: AskingQuery | None) -> None:
        """Note the query that reads the micro-batch, if it is known."""
        if asking is None:
            return
        name, *found = _BEHIND_NAME.split(asking.about, maxsplit=1)
        facts = NotedQuery(
            _RUN_OF_JOB.sub(r"\1", name) if found else "",
            int(asking.batch),
            self.next,
            self.run,
            checkpoint=self.checkpoint,
            end=self.end,
        )
        note_query(target, asking.query, "read", facts)


def note_query(target: StreamOrTopic, query: str, part: Part, facts: NotedQuery) -> None:
    """Note facts of a query; logs it when the store does not take them."""
    try:
        target.hw.store.run(note(query, part, target.name, facts), patience_s=0.0)
    except HeadwaterError as error:
        logger.warning("query %s is not noted in the store: %s", query, error)


class NotedWrite(SparkWrite):
    """A write of a query that is noted in the store with what is known ``about`` it."""

    __slots__ = ()

    about: NotedQuery

    @property
    def checkpoint(self) -> str:
        """See SparkWrite."""
        return self.about.checkpoint

    def noted(self, query: str) -> StreamOrTopic:
        """Return the stream or topic that is noted as the one that the query writes to."""
        raise NotImplementedError

    def begin(self, query: str) -> None:
        """Note a query while its first epoch runs; its first task does, others do not.

        So it is known before the first commit, however long that takes. No epoch is done by then.
        """
        context = TaskContext.get()
        if context is None or context.partitionId():
            return
        if context.getLocalProperty("streaming.sql.batchId") == "0":
            self.end(query, -1)

    def end(self, query: str, epoch: int) -> None:
        """See SparkWrite."""
        facts = msgspec.structs.replace(self.about, epoch=epoch)
        note_query(self.noted(query), query.removeprefix("spark-"), "write", facts)


@dataclass
class QueryBeat:
    """The reader of a query on the driver, which notes how far the query has come."""

    target: StreamOrTopic
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    _query: str = ""
    _next: dict[str, int] = field(default_factory=dict)
    _noted: float = field(default_factory=time.monotonic)
    _thread: ThreadPoolExecutor | None = None
    _waiting: Future[None] | None = None

    def note_later(self, note: ReadNote, asking: AskingQuery) -> None:
        """Note a micro-batch in a thread: no query waits for it. Only the last one counts."""
        self._query = asking.query
        self._thread = self._thread or ThreadPoolExecutor(1)
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = self._thread.submit(note.write, self.target, asking)

    def end(self) -> None:
        """Note that the query has ended, behind all other notes."""
        if self._thread is not None:
            self._thread.shutdown()
        self.write(ended=True)

    def reached(self, next_: Mapping[str, int]) -> None:
        """Remember what is done, for the next note."""
        self._next = dict(next_)

    def now_and_then(self) -> None:
        """Note the query, at most every ten seconds."""
        if time.monotonic() - self._noted >= _BEAT_S:
            self.write()

    def write(self, *, ended: bool = False) -> None:
        """Note the query at once, if it is known yet which one it is."""
        self._noted = time.monotonic()
        if query := self._query or self._find():
            note_query(self.target, query, "beat", NotedQuery(next=self._next, ended=ended))

    def _find(self) -> str:
        """Return the query whose tasks have noted this run; empty before the first of them."""
        try:
            notes = self.target.hw.store.run(all_notes(), patience_s=0.0).notes
        except HeadwaterError:
            return ""
        self._query = next((one.query for one in notes if one.facts.run == self.run), "")
        return self._query
