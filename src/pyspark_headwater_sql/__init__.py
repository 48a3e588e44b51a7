"""Where Spark finds ``format("headwater_sql")`` by itself: it looks into modules pyspark_*."""

from headwater.spark.sql_sink.source import SqlSink as DefaultSource

__all__ = ["DefaultSource"]
