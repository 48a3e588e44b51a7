"""What Spark is about to do for a DataFrame."""

from __future__ import annotations

from pyspark.sql import DataFrame


def plan_of(frame: DataFrame) -> str:
    """Return the physical plan as text."""
    plan: str = frame._jdf.queryExecution().executedPlan().toString()
    return plan
