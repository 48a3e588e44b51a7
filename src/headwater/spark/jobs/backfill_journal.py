"""The journal of a backfill: its plan, and which chunks are done; a stream of its own.

The plan is the first message, and only one process can write it. A chunk is recorded as done when
it is in the log; a run that dies between the two writes it again with the same sequence, and the
log deduplicates it.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from headwater.client import Headwater
from headwater.errors import FormatTooNew, InputChanged, JobForgotten, ReusedSequence
from headwater.log.retention import PRODUCER_MS
from headwater.spark.jobs.backfill_inputs import Chunk

_PLAN, _BEGUN, _DONE = "plan", "begun", "done"
# Housekeepers may forget a producer after this time; a little earlier is safe.
FORGOTTEN_MS = PRODUCER_MS - 3600 * 1000
# How a plan is written, and the journal with it.
PLAN_FORMAT = 1


class _Written(msgspec.Struct, frozen=True):
    """What every release can read of a plan; without a format it is of the first."""

    format: int = PLAN_FORMAT


class BackfillPlan(msgspec.Struct, frozen=True):
    """What a backfill set out to do: what must stay the same, and the chunks."""

    facts: dict[str, Any]
    chunks: list[Chunk]
    format: int = PLAN_FORMAT

    @property
    def rows(self) -> int:
        """How many rows there are in all."""
        return sum(chunk.rows for chunk in self.chunks)


class Journal:
    """The journal of the backfill of that name, in the store that it writes to."""

    def __init__(self, hw: Headwater, name: str) -> None:
        self._job = f"backfill {name!r}"
        self.stream = hw.stream(f"backfill.{name}")
        self.producer = f"backfill:{name}"
        self.done: set[int] = set()
        self._begun: set[int] = set()

    def read(self) -> BackfillPlan | None:
        """Return the plan if there is one, and read what is done. Raises FormatTooNew."""
        plan = None
        for batch in self.stream.scan():
            for row in batch.to_pylist():
                if row["tag"] == _PLAN:
                    written = msgspec.json.decode(row["value"], type=_Written).format
                    if written > PLAN_FORMAT:
                        raise FormatTooNew(f"the plan of {self._job}", written, PLAN_FORMAT)
                    plan = msgspec.json.decode(row["value"], type=BackfillPlan)
                else:
                    (self.done if row["tag"] == _DONE else self._begun).add(int(row["value"]))
        return plan

    def begin(self, plan: BackfillPlan) -> BackfillPlan:
        """Record a plan; returns the one that counts, which is another's if that was faster."""
        entry = (_PLAN, msgspec.json.encode(plan))
        with contextlib.suppress(ReusedSequence):
            self.stream.write_many([entry], producer=_PLAN, sequence=1)
        kept = self.read()
        assert kept is not None
        return kept

    def check(self, plan: BackfillPlan, facts: dict[str, Any], now_ms: float) -> None:
        """Check that a plan can go on. Raises InputChanged, JobForgotten.

        A chunk that was begun long ago may be in the log, and the log may not know it any more.
        """
        for name, fact in facts.items():
            began = plan.facts.get(name)
            if began != fact:
                why = f"{name} is {fact!r}, and was {began!r} when it began"
                raise InputChanged(self._job, why)
        silent_ms = now_ms - self.stream.info().last_time_ms
        if self._begun - self.done and silent_ms > FORGOTTEN_MS:
            raise JobForgotten(self._job, self.stream.name)

    def begin_chunk(self, place: int) -> None:
        """Record that a chunk is about to be written."""
        self.stream.write(_BEGUN, str(place))

    def end_chunk(self, place: int) -> None:
        """Record that a chunk is in the log."""
        self.stream.write(_DONE, str(place))
        self.done.add(place)
