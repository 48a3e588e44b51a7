"""A table of a database, and writes to it by the SQL sink, with or without Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql import types as t

from headwater.spark.engine.writes import Content, content_of
from headwater.spark.sql_sink import database
from headwater.spark.sql_sink.source import Epoch, SinkPlan, SqlSink

LONG, STRING = t.LongType(), t.StringType()
RIDES = t.StructType([t.StructField("ride", STRING), t.StructField("distance", LONG)])


class Table:
    """A table of a database, and writes to it without Spark: what tasks and the driver do."""

    def __init__(self, url: str, engine: sa.Engine) -> None:
        self.url, self.engine = url, engine
        self.sqlite = engine.dialect.name == "sqlite"

    def make(self, sql: str) -> None:
        with self.engine.begin() as conn:
            conn.exec_driver_sql(sql)

    def rows(self, sql: str = "SELECT ride, distance FROM totals ORDER BY 1, 2") -> list[Any]:
        with self.engine.connect() as conn:
            return [tuple(row) for row in conn.exec_driver_sql(sql)]

    def staged(self) -> list[str]:
        names = sa.inspect(self.engine).get_table_names()
        return [name for name in names if name.startswith(database.STAGED)]

    def plan(
        self,
        schema: t.StructType = RIDES,
        *,
        overwrite: bool = False,
        streaming: bool = False,
        **options: object,
    ) -> SinkPlan:
        given = {"url": self.url, "table": "totals"} | {k: str(v) for k, v in options.items()}
        source = SqlSink(given)
        writer: Any = (source.streamWriter if streaming else source.writer)(schema, overwrite)
        plan: SinkPlan = writer.to
        return plan

    def stage(self, plan: SinkPlan, columns: dict[str, Any]) -> str:
        name = database.fresh_staged()
        # Two copies of SQLite in a process do not see each other's locks: use one at a time.
        self.engine.dispose()
        plan.database.stage(plan.relation, name, iter([pa.record_batch(columns)]))
        return name

    def write(self, plan: SinkPlan, *tasks: dict[str, Any], epoch: Epoch | None = None) -> bool:
        staged = [self.stage(plan, columns) for columns in tasks]
        if epoch is not None:
            content = Content.of_all(content_of(pa.record_batch(columns)) for columns in tasks)
            epoch = replace(epoch, content=content.digest())
        return database.commit(plan, epoch, staged)


def rides(**distances: int | None) -> dict[str, Any]:
    return {"ride": list(distances), "distance": pa.array(list(distances.values()), pa.int64())}
