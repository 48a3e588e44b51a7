"""Where Spark finds ``format("headwater_timeline")`` by itself: it looks into modules pyspark_*."""

from headwater.spark.timelines import TimelineSource as DefaultSource

__all__ = ["DefaultSource"]
