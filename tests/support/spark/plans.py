"""What Spark is about to do for a DataFrame."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession


def plan_of(frame: DataFrame) -> str:
    """Return the physical plan as text."""
    plan: str = frame._jdf.queryExecution().executedPlan().toString()
    return plan


def last_plan(spark: SparkSession) -> str:
    """Return the physical plan of what the session ran last, a write for example."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    ran = spark._jsparkSession.sharedState().statusStore().executionsList()
    plan: str = ran.last().physicalPlanDescription()
    return plan


@contextlib.contextmanager
def without_our_rule(spark: SparkSession) -> Iterator[None]:
    """Have the session as Spark makes it, for a while; rules of the analyzer stay in force."""
    excluded = "spark.sql.optimizer.excludedRules"
    spark.conf.set(excluded, "headwater.OwnTables")
    methods = spark._jsparkSession.experimental()
    ours = {kind: getattr(methods, kind)() for kind in ("extraOptimizations", "extraStrategies")}
    for kind, made in ours.items():
        getattr(methods, f"{kind}_$eq")(made.take(0))
    try:
        yield
    finally:
        spark.conf.unset(excluded)
        for kind, made in ours.items():
            getattr(methods, f"{kind}_$eq")(made)
