"""Where Spark finds ``format("headwater_table")`` by itself: it looks into modules pyspark_*."""

from headwater.spark.table.source import TableSource as DefaultSource

__all__ = ["DefaultSource"]
