"""Where Spark finds ``format("headwater_names")`` by itself: it looks into modules pyspark_*."""

from headwater.spark.log.catalog_names import NamesSource as DefaultSource

__all__ = ["DefaultSource"]
