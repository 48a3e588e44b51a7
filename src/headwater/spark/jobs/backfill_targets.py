"""Where a backfill goes: the log, a queue, a dirty list, timelines; what each takes of a row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql import types as t

from headwater.spark.engine.accepted_columns import AcceptedColumns
from headwater.spark.icks import sink as icks
from headwater.spark.timelines import sink as timelines
from headwater.spark.timelines.target import FarmPlan
from headwater.timeline.layout import safe_farm

_NESTED = (t.StructType, t.ArrayType, t.MapType)


class BackfillTarget(Protocol):
    """A place to write to, of a store."""

    @property
    def url(self) -> str:
        """The store."""

    @property
    def kind(self) -> str:
        """Of what kind it is, for people."""

    @property
    def name(self) -> str:
        """Its name."""

    def facts(self) -> dict[str, Any]:
        """Return what must be the same when a backfill goes on."""

    def shape(self, rows: DataFrame, tag: str | None, value: str | None) -> DataFrame:
        """Bring rows of the input into the columns that the target takes."""

    def write(self, rows: DataFrame, producer: str, sequence: int) -> None:
        """Write all rows, in order; a repeat of a sequence changes nothing."""


@dataclass(frozen=True, slots=True)
class LogTarget:
    """A stream or a topic; ``kind`` says which."""

    url: str = field(repr=False)
    kind: str
    name: str

    def facts(self) -> dict[str, Any]:
        """See BackfillTarget."""
        return {self.kind: self.name}

    def shape(self, rows: DataFrame, tag: str | None, value: str | None) -> DataFrame:
        """See BackfillTarget: the columns tag and value."""
        tags = F.lit("") if tag is None else _column(rows, tag).cast("string")
        return rows.select(tags.alias("tag"), _value(rows, value).alias("value"))

    def write(self, rows: DataFrame, producer: str, sequence: int) -> None:
        """See BackfillTarget."""
        options = {"url": self.url, self.kind: self.name}
        options |= {"producer": producer, "sequence": str(sequence)}
        rows.write.format("headwater").options(**options).mode("append").save()


@dataclass(frozen=True, slots=True)
class QueueTarget:
    """A queue."""

    url: str = field(repr=False)
    name: str
    kind: str = "queue"

    def facts(self) -> dict[str, Any]:
        """See BackfillTarget."""
        return {"queue": self.name}

    def shape(self, rows: DataFrame, tag: str | None, value: str | None) -> DataFrame:  # noqa: ARG002
        """See BackfillTarget: the column value."""
        return rows.select(_value(rows, value).alias("value"))

    def write(self, rows: DataFrame, producer: str, sequence: int) -> None:
        """See BackfillTarget."""
        options = {"url": self.url, "queue": self.name}
        options |= {"producer": producer, "sequence": str(sequence)}
        rows.write.format("headwater_queue").options(**options).mode("append").save()


@dataclass(frozen=True, slots=True)
class DirtyTarget:
    """A dirty list; ``kind`` says whether it is an Ick or a channel."""

    url: str = field(repr=False)
    kind: str
    name: str
    score: str | None

    def facts(self) -> dict[str, Any]:
        """See BackfillTarget."""
        return {self.kind: self.name, "score": self.score}

    def shape(self, rows: DataFrame, tag: str | None, value: str | None) -> DataFrame:  # noqa: ARG002
        """See BackfillTarget: the columns member and score."""
        assert tag is not None
        score = F.lit(0.0) if self.score is None else _score(rows, self.score, icks.ACCEPTED)
        return rows.select(_bytes(rows, tag).alias("member"), score.alias("score"))

    def write(self, rows: DataFrame, producer: str, sequence: int) -> None:  # noqa: ARG002
        """See BackfillTarget: to add again what was added changes nothing, whoever says it."""
        options = {"url": self.url, self.kind: self.name}
        rows.write.format("headwater_ick").options(**options).mode("append").save()


@dataclass(frozen=True, slots=True)
class TimelineTarget:
    """Timelines of a farm: the tag is the key, the value the member."""

    url: str = field(repr=False)
    farm: FarmPlan
    score: str

    @property
    def kind(self) -> str:
        """See BackfillTarget."""
        return "timelines"

    @property
    def name(self) -> str:
        """See BackfillTarget: the farm, without passwords."""
        return safe_farm(self.farm.instances)

    def facts(self) -> dict[str, Any]:
        """See BackfillTarget."""
        return {self.kind: self.name, "score": self.score}

    def shape(self, rows: DataFrame, tag: str | None, value: str | None) -> DataFrame:
        """See BackfillTarget: the columns key, score and member."""
        assert tag is not None
        assert value is not None
        score = _score(rows, self.score, timelines.ACCEPTED)
        return rows.select(
            _bytes(rows, tag).alias("key"),
            score.alias("score"),
            _bytes(rows, value).alias("member"),
        )

    def write(self, rows: DataFrame, producer: str, sequence: int) -> None:  # noqa: ARG002
        """See BackfillTarget: to insert again what was inserted changes nothing."""
        given = {
            "instances": self.farm.instances,
            "maxSize": str(self.farm.max_size),
            **({} if self.farm.keep is None else {"keep": str(self.farm.keep)}),
        }
        rows.write.format("headwater_timeline").options(**given).mode("append").save()


def _column(rows: DataFrame, name: str) -> Column:
    return rows["`" + name.replace("`", "``") + "`"]


def _score(rows: DataFrame, name: str, accepted: AcceptedColumns) -> Column:
    """Return a score uncast where the sink accepts its type: it refuses what would be rounded."""
    as_it_is = isinstance(rows.schema[name].dataType, accepted.types["score"])
    return _column(rows, name) if as_it_is else _column(rows, name).cast("double")


def _value(rows: DataFrame, name: str | None) -> Column:
    """Return the value of a message: the bytes of a column, or the whole row as JSON."""
    if name is None:
        whole = F.struct(*(_column(rows, each) for each in rows.columns))
        return F.to_json(whole, {"ignoreNullFields": "false"}).cast("binary")
    return F.coalesce(_bytes(rows, name), F.lit(b""))


def _bytes(rows: DataFrame, name: str) -> Column:
    column, kind = _column(rows, name), rows.schema[name].dataType
    if isinstance(kind, _NESTED):
        column = F.to_json(column, {"ignoreNullFields": "false"})
    elif not isinstance(kind, t.BinaryType):
        column = column.cast("string")
    return column.cast("binary")
