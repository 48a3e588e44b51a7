"""Where Spark finds ``format("headwater_table")`` by itself: it looks into modules pyspark_*."""

from headwater.spark.tables.source import TableSource as DefaultSource

__all__ = ["DefaultSource"]
