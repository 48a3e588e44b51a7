"""Where Spark finds ``format("headwater_ick")`` by itself: it looks into modules pyspark_*."""

from headwater.spark.icks import IckSource as DefaultSource

__all__ = ["DefaultSource"]
