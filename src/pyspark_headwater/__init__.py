"""Where Spark finds ``format("headwater")`` by itself: it looks into modules named pyspark_*."""

from headwater.spark.log.source import HeadwaterSource as DefaultSource

__all__ = ["DefaultSource"]
