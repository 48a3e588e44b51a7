"""Where Spark finds ``format("headwater_queue")`` by itself: it looks into modules pyspark_*."""

from headwater.spark.queues import QueueSource as DefaultSource

__all__ = ["DefaultSource"]
